"""Templates of one feature each, for template_live.py; every one is rendered by jinja2 as well."""

VALUES = {
    "s": "  Hello, wörld\n",
    "name": "Ada <b> & 'co' \"x\"",
    "n": 7,
    "z": 0,
    "f": 2.5,
    "yes": True,
    "no": False,
    "nil": None,
    "empty": "",
    "xs": [3, 1, 2],
    "words": ["b", "A", "c", "a"],
    "pairs": [{"k": "x", "v": 1, "on": True}, {"k": "y", "v": 2}, {"k": "X", "v": 3, "on": False}],
    "d": {"b": 1, "a": {"c": [1, 2.0, None, True, "q'\""]}, "items": "key", "Z": "z"},
    "uni": "aé世🙂\u00a0\u200b\x07\u0301b",
    "deep": {"a": {"b": [{"c": 5}]}},
    "big": 2**53,
    "text": "one two  three\nfour\r\nfive\n\n six",
    "csv": "a,b,,c",
    "mixed": [1, "a", None],
    "floats": [1.0, 0.1, 1e16, 1e22, 1.5e-7, 123456789.125, 1e15, 0.0001, 0.00001, -0.0, 100.0, 1e100],
    "strange": "tab\tnl\ncr\rquote'dq\"back\\nul\x01del\x7f",
}

SNIPPETS = r"""
{{ s }}|{{ n }}|{{ f }}|{{ yes }}|{{ no }}|{{ nil }}|{{ xs }}|{{ d }}|{{ uni }}
{{ [s, n, f, yes, nil, uni, strange, name] }}
{{ (1,) }}{{ (1, 2) }}{{ () }}{{ [] }}{{ {} }}{{ {'a': 1, "b": [1, (2,)]} }}
{{ floats }}{{ floats|join(' ') }}
{{ floats|tojson }}
{{ undefined_name }}|{{ d.missing }}|{{ d['missing'] }}|{{ xs[10] }}|{{ nil[0] }}|{{ n.foo }}
{{ undefined_name.x }}
{{ d.missing.x }}
{{ undefined_name + 1 }}
{{ 'a' + undefined_name }}
{{ 'a' ~ undefined_name ~ nil ~ 1 ~ 2.0 ~ yes ~ [1,'x'] }}
{{ undefined_name == other }}{{ undefined_name == none }}{{ undefined_name != 1 }}
{{ undefined_name < 1 }}
{{ undefined_name() }}
{% for x in undefined_name %}a{% else %}none{% endfor %}
{% for x in none %}a{% endfor %}
{% for x in n %}a{% endfor %}
{{ undefined_name is defined }}{{ n is defined }}{{ d.x is undefined }}{{ nil is defined }}
{{ d.a is defined and d.a.c[4] }}
{{ undefined_name or 'fallback' }}{{ '' or 0 or none or [] }}{{ 1 and 'x' and [2] }}{{ 0 and x.y }}{{ not '' }}
{{ 1 if yes }}{{ 1 if no }}{{ 1 if no else 2 if no else 3 }}{{ 'a' if yes else 'b' ~ 'c' }}
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }}
{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1 / 3 }} {{ 10 / 5 }} {{ 1e3 }} {{ 1_000 }} {{ 1.5e-3 }}
{{ 1 / 0 }}
{{ 5 % 0 }}
{{ 1.0 // 0 }}
{{ -n }} {{ +n }} {{ -f }} {{ - n + 1 }} {{ -yes }} {{ --n }}
{{ 'ab' * 3 }}{{ 3 * 'ab' }}{{ 'x' * -1 }}{{ yes + 1 }}{{ yes * 'a' }}{{ [1] + [2] }}{{ (1,) + (2,) }}
{{ [1] + (2,) }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ 'a' - 'b' }}
{{ none + 1 }}
{{ 1 < 2 < 3 }}{{ 1 < 2 > 5 }}{{ 1 == 1.0 == true }}{{ 'a' < 'b' }}{{ (1,) == (1,) }}{{ [1] == (1,) }}{{ 'a' != 'b' }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ {} < {} }}
{{ big + 1 == 9007199254740993 }}{{ big == 9007199254740992.0 }}{{ big + 1 == 9007199254740992.0 }}{{ 9007199254740993 > 9007199254740992.0 }}
{{ 'ell' in s }}{{ 'x' not in s }}{{ 3 in xs }}{{ 'b' in d }}{{ 'q' in d }}{{ '' in '' }}{{ none in [none] }}{{ 1 in {1: 2} }}
{{ 1 in 'abc' }}
{{ 1 in n }}
{{ [] in d }}
{{ not 1 in [1] }}{{ not 1 == 2 }}{{ not not 1 }}{{ 1 not in [2] and 2 in [2] }}
{{ 1 is odd }}{{ 2 is even }}{{ 6 is divisibleby 3 }}{{ 6 is divisibleby(4) }}{{ 1 is not odd }}{{ 3 is odd and 4 is even }}
{{ s is string }}{{ n is string }}{{ d is mapping }}{{ xs is mapping }}{{ xs is iterable }}{{ s is iterable }}{{ n is iterable }}{{ u is iterable }}
{{ xs is sequence }}{{ d is sequence }}{{ s is sequence }}{{ n is sequence }}{{ u is sequence }}{{ (1,) is sequence }}{{ range(2) is sequence }}{{ d.keys() is sequence }}
{{ n is number }}{{ f is number }}{{ yes is number }}{{ s is number }}{{ n is integer }}{{ yes is integer }}{{ f is integer }}{{ f is float }}{{ n is float }}
{{ yes is boolean }}{{ n is boolean }}{{ yes is true }}{{ 1 is true }}{{ no is false }}{{ 0 is false }}{{ nil is none }}{{ u is none }}
{{ 1 is eq 1 }}{{ 1 is equalto(2) }}{{ 1 is ne 2 }}{{ 1 is lt 2 }}{{ 1 is gt 2 }}{{ 2 is ge 2 }}{{ 2 is le 1 }}{{ 1 is in [1] }}
{{ 'x' is odd }}
{{ 1 is defined is defined }}
{{ s is strange_test }}
{% if no %}{{ s is strange_test }}{% endif %}ok
{% if yes %}{{ s is strange_test }}{% endif %}ok
{{ s|strange_filter }}
{% if no %}{{ s|strange_filter }}{% endif %}ok
{% if yes %}{{ s|strange_filter }}{% endif %}ok
{% if no %}{% for x in xs %}{{ s|strange_filter }}{% endfor %}{% endif %}ok
{{ 1 if yes else s|strange_filter }}
{{ s|trim }}|{{ 'xxaxx'|trim('x') }}|{{ '\u00a0 a \u2003'|trim }}|{{ 5|trim }}|{{ s.strip() }}|{{ s.lstrip() }}|{{ s.rstrip() }}|{{ 'abca'.strip('ab') }}|{{ 'abc'.rstrip('cb') }}
{{ s|upper }}{{ s|lower }}{{ 'hello wORLD-foo (bar)'|title }}{{ 'hELLO'|capitalize }}{{ 'hello wORLD they\'re'.title() }}{{ 'hELLO x'.capitalize() }}{{ 'straße é'.upper() }}{{ 'ÀÉ'.lower() }}
{{ 'a-b-c'|replace('-', '+') }}{{ 'aaa'|replace('a', 'b', 2) }}{{ 121|replace(1, 'x') }}
{{ xs|join }}{{ xs|join(', ') }}{{ 'abc'|join('.') }}{{ [1, none, 'x', yes]|join('|') }}{{ u|join(',') }}{{ d|join(',') }}
{{ xs|length }}{{ s|length }}{{ uni|length }}{{ d|count }}{{ u|length }}{{ ''|length }}{{ (1, 2)|length }}
{{ n|length }}
{{ none|length }}
{{ pairs|selectattr('on')|length }}
{{ u|default('x') }}{{ ''|default('x') }}{{ ''|default('x', true) }}{{ none|d('x') }}{{ none|d('x', boolean=true) }}{{ u|default }}{{ d.q|default(5)|int + 1 }}{{ 0|default(default_value=3, boolean=True) }}
{{ xs|first }}{{ xs|last }}{{ []|first }}{{ s|trim|first }}{{ uni|last }}{{ d|first }}{{ d|last }}
{{ u|first }}
{{ pairs|map(attribute='k')|last }}
{{ pairs|selectattr('on')|map(attribute='k')|list }}{{ pairs|selectattr('on', 'defined')|map(attribute='k')|join(',') }}{{ pairs|rejectattr('on')|list|length }}
{{ pairs|selectattr('k', 'equalto', 'x')|list }}{{ pairs|selectattr('v', '>', 1)|map(attribute='v')|list }}{{ pairs|selectattr('v', 'in', [1, 3])|map(attribute='v')|list }}{{ pairs|rejectattr('k', '==', 'y')|list|length }}
{{ xs|select('odd')|list }}{{ xs|reject('odd')|list }}{{ [0, 1, '', 'a', none]|select|list }}{{ [0, 1]|reject|list }}{{ mixed|select('string')|list }}{{ xs|select('gt', 1)|list }}
{{ words|map('upper')|list }}{{ words|map('replace', 'a', 'x')|list }}{{ xs|map('string')|join('-') }}{{ [[1, 2], [3]]|map('length')|list }}{{ [[1, 2], [3]]|map('first')|list }}
{{ [[1, [5, 6]]]|map(attribute='1.0')|list }}{{ [deep]|map(attribute='a.b.0.c')|list }}{{ pairs|map(attribute='k')|map('lower')|unique|list }}
{{ xs|map('nothing')|list }}
{{ xs|select('nothing')|list }}
{% if pairs|selectattr('nope') %}generators are true{% endif %}{% if (pairs|selectattr('nope')|list) %}no{% endif %}
{% set g = xs|map('string') %}{{ g|list }}{{ g|list }}{% for x in g %}never{% endfor %}
{{ xs|sort }}{{ words|sort }}{{ xs|sort(reverse=true) }}{{ pairs|sort(attribute='k')|map(attribute='v')|list }}{{ pairs|sort(attribute='k', reverse=true)|map(attribute='v')|list }}
{{ mixed|sort }}
{{ words|unique|list }}{{ [1, 1.0, true, 2, 2]|unique|list }}
{{ xs|min }}{{ xs|max }}{{ words|min }}{{ words|max }}{{ []|min }}
{{ xs|reverse|list }}{{ 'abc'|reverse }}{{ (1, 2)|reverse|list }}{{ d|reverse|list }}{{ uni|reverse }}
{{ 'abc'|list }}{{ d|list }}{{ (1, 2)|list }}{{ d.items()|list }}{{ d.keys()|list }}{{ d.values()|list }}{{ range(3)|list }}
{{ d|items|list }}{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}{{ u|items|list }}
{{ xs|items|list }}
{{ d|dictsort }}{{ {'b': 1, 'a': 2}|dictsort }}{% for k, v in d|dictsort %}{{ k }}{% endfor %}
{{ 5|string + '!' }}{{ none|string }}{{ u|string }}{{ [1]|string }}{{ f|string }}{{ yes|string|lower }}
{{ '42'|int }}{{ '4.9'|int }}{{ 'x'|int }}{{ 'x'|int(7) }}{{ 3.9|int }}{{ -3.9|int }}{{ none|int }}{{ yes|int }}{{ ' 12 '|int }}{{ '1_000'|int }}{{ ''|int }}{{ '-5'|int }}{{ '1e3'|int }}
{{ u|int }}
{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent(2, blank=true) }}|{{ 'a\n'|indent }}|{{ ''|indent }}|{{ 'a\nb'|indent(width=1) }}
{{ 5|indent }}
{{ name|e }}{{ name|escape|length }}{{ name|safe }}{{ (name|e) ~ '<' }}{{ (name|e) + '<' }}{{ '<' + (name|safe) }}{{ name|safe|upper }}{{ (name|safe).split('&') }}
{{ 'x' % 1 }}
{{ '{} {}'.format(1, 'b') }}{{ '{0} {1} {0}'.format('a', 'b') }}{{ '{a}{{}}'.format(a=5) }}{{ '{} {}'.format(none, [1]) }}
{{ '{}'.format() }}
{{ '{'.format(1) }}
{{ '{a}'.format(b=1) }}
{{ '{:d}'.format('x') }}
{{ '{} {0}'.format(1) }}
{{ text.split() }}{{ text.split('\n') }}{{ csv.split(',') }}{{ csv.split(',', 1) }}{{ text.split(none, 2) }}{{ ''.split() }}{{ ''.split(',') }}{{ '  a  '.split() }}{{ ' a b '.split(maxsplit=1) }}{{ 'aXXbXXc'.split('XX')[-1] }}{{ '   '.split() }}{{ ' a b c '.split(none, 0) }}
{{ 'a'.split('') }}
{{ text.splitlines() }}{{ ''.splitlines() }}{{ 'a\n'.splitlines() }}{{ '\n\n'.splitlines() }}{{ 'a\u2028b\x0bc'.splitlines() }}
{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith('bc') }}{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.startswith('') }}{{ 'a'.startswith('abc') }}{{ 'abc'.endswith(('c',)) }}
{{ 'abc'.startswith(1) }}
{{ pairs|sort(attribute='nope')|map(attribute='v')|list }}{{ xs|sort(attribute='nope') }}
{{ pairs|sort(attribute='on') }}
{{ undefined_name is divisibleby 2 }}
{{ 4 is divisibleby undefined_name }}
{{ ', '.join(words) }}{{ ''.join([]) }}{{ '-'.join('abc') }}{{ ','.join(d) }}
{{ ', '.join(xs) }}
{{ d.get('b') }}{{ d.get('q') }}{{ d.get('q', 'z') }}{{ d.get('q', default=1) if no else '' }}{{ d['items'] }}
{{ d.get([]) }}
{{ xs.append(1) }}
{{ xs.append }}|{{ xs.append is defined }}
{{ d.update({'a': 1}) }}
{{ d.pop('b') }}
{% set _ = xs.append(4) %}{{ xs }}
{{ s.nothing }}|{{ s.nothing() }}
{{ s['strip']() }}{{ s['nope'] }}{{ d.a.c[1] }}{{ d['a']['c'][-1] }}{{ deep.a.b.0.c }}{{ deep['a'].b[0]['c'] }}{{ xs[-1] }}{{ xs[-9] }}{{ 'abc'[1] }}{{ uni[2] }}{{ uni[-1] }}{{ xs[true] }}{{ xs['a'] }}{{ xs[1.0] }}{{ n[0] }}
{{ xs[::-1] }}{{ xs[1:] }}{{ xs[:1] }}{{ xs[:-1] }}{{ xs[-2:] }}{{ xs[5:] }}{{ xs[0:3:2] }}{{ xs[::2] }}{{ 'abcdef'[1:4] }}{{ 'abcdef'[::-1] }}{{ uni[::-1] }}{{ uni[1:3] }}{{ uni[::2] }}{{ (1, 2, 3)[1:] }}{{ xs[none:none] }}{{ 'abcdef'[4:1:-1] }}{{ 'abcdef'[-100:100] }}{{ 'abcdef'[10:-10:-2] }}{{ range(10)[2:5]|list }}{{ range(10)[-1] }}
{{ xs[::0] }}
{{ n[1:] }}
{{ d[1:] }}
{{ xs['a':] }}
{{ u[1:] }}
{{ range(5)|list }}{{ range(2, 5)|list }}{{ range(5, 0, -2)|list }}{{ range(0)|list }}{{ range(-3)|list }}{{ range(10)|length }}{{ 3 in range(5) }}{{ range(3) == range(0, 3) }}
{{ range(100001)|length }}
{{ range(1000000000) }}
{{ range(0, 1, 0) }}
{{ range('a') }}
{% set ns = namespace(a=1, b=[]) %}{% set ns.a = ns.a + 1 %}{% set ns.c = 'new' %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns.nope }}{{ ns.a is defined }}{{ ns.q is defined }}{{ ns['a'] is defined }}
{% set ns = namespace(a=1) %}{{ ns.a }}{{ ns == ns }}
{% set ns = namespace(_a=1) %}
{% set ns = namespace() %}{% set ns._a = 1 %}
{% set d.x = 1 %}
{% set ns = namespace(n=0) %}{% for x in xs %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}
{% set x = 1 %}{% for i in xs %}{% set x = i %}{{ x }}{% endfor %}{{ x }}
{% for i in xs %}{% if loop.first %}{% set y = i %}{% endif %}[{{ y }}]{% endfor %}{{ y }}
{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}{% set (c, d2) = [5, 6] %}{{ c }}{{ d2 }}
{% set a, b = 1 %}
{% set a, b = [1, 2, 3] %}
{% set x = 1, 2 %}{{ x }}{% set y = 1, %}{{ y }}
{% set x %}a{{ n }}b{% endset %}{{ x }}{{ x|length }}{% set y | upper | trim %} q {% endset %}[{{ y }}]
{% set ns = namespace() %}{% set ns.x %}block{% endset %}{{ ns.x }}
{% for x in xs %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}
{% for x in xs %}{% for y in words %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}
{% for x in xs if x > 1 %}{{ x }}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% else %}none{% endfor %}
{% for x in xs if x > 10 %}{{ x }}{% else %}none{{ loop is defined }}{% endfor %}
{% set ns = namespace(stop=false) %}{% for x in xs if not ns.stop %}{{ x }}{% if x == 1 %}{% set ns.stop = true %}{% endif %}{% endfor %}
{% for k in d %}{{ k }}{% endfor %}{% for k, v in d.items() %}{{ k }}:{{ v }};{% endfor %}{% for c in 'aé🙂' %}[{{ c }}]{% endfor %}
{% for a, b in [(1, 2), [3, 4], 'xy'] %}{{ a }}{{ b }}{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for x in xs %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% else %}never{% endfor %}
{% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}
{% for x in [] %}{% else %}{% for y in xs %}{{ y }}{% break %}{% endfor %}{% endfor %}
{% break %}
{% for m in messages %}{{ m.role }}{{ m['content'] }}{% endfor %}
{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ m(1, c='z') }}|{{ m(b=5, a=4) }}|{{ m() }}|{{ m(1)|length }}{{ m(1) ~ 'q' }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}
{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}
{% macro f(k) %}{% if k > 0 %}{{ k }}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% set x = 'out' %}{% macro m() %}{{ x }}{% set x = 'in' %}{{ x }}{% endmacro %}{{ m() }}{{ x }}
{% macro m() %}{{ later }}{% endmacro %}{{ m() }}{% set later = 5 %}{{ m() }}
{% set ns = namespace(k=0) %}{% macro inc() %}{% set ns.k = ns.k + 1 %}{{ ns.k }}{% endmacro %}{{ inc() }}{{ inc() }}{{ ns.k }}
{% macro outer() %}{% macro inner(q) %}<{{ q }}>{% endmacro %}{{ inner(1) }}{% endmacro %}{{ outer() }}{{ inner is defined }}
{{ m is defined }}{% macro m() %}x{% endmacro %}{{ m is defined }}
{% for x in xs %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}
{% for p in xs %}{{ loop([]) }}{% endfor %}
{% filter upper %}abc{{ n }}{% endfilter %}{% filter trim|replace('a', 'b') %}  aaa {% endfilter %}
{% generation %}text{{ n }}{% set q = 1 %}{% endgeneration %}{{ q is defined }}
{# comment #}a{#- x -#}  b  {#+ y +#}  c
{% raw %}{{ x }}{% if %}{# #}{% endraw %}|{%- raw -%}  {{ y }}  {%- endraw -%}  z
{{ "a\tb\\n\x41\u00e9\U0001F642\101\q\'" }}{{ 'it''s' }}{{ "a" 'b' }}
{{ 'a' if 'b' in 'abc' and not no else 'c' }}{{ (1, 2) if yes }}{{ 1, 2 }}{{ ('x' if no else 'y') ~ 'z' }}
{{ d.a.c|tojson }}{{ d|tojson }}{{ name|tojson }}{{ strange|tojson }}{{ uni|tojson }}{{ uni|tojson(ensure_ascii=true) }}{{ nil|tojson }}{{ yes|tojson }}{{ (1, 2)|tojson }}{{ {1: 2, none: 3, 1.5: 4, true: 5}|tojson }}
{{ d|tojson(indent=2) }}{{ []|tojson(indent=2) }}{{ {}|tojson(indent=4) }}{{ xs|tojson(indent=0) }}{{ d|tojson(sort_keys=true) if no }}{{ d|tojson(separators=(',', ':')) }}{{ d|tojson(true, 1) }}
{{ 1e22|tojson }}{{ 1.0|tojson }}
{{ u|tojson }}
{{ xs|map('string')|tojson }}
{{ range(3)|tojson }}
{{ d|tojson(bogus=1) }}
{{ raise_exception('no!') }}
{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y-%m-%d %H:%M:%S %A %B %j %%') }}
{{ bos_token }}|{{ eos_token }}|{{ eos_token is defined }}|{{ tools is none }}|{{ documents is none }}|{{ add_generation_prompt }}
{{ messages|length }}{{ messages[0].role }}{{ messages[-1]['content'] }}{{ messages[1:]|map(attribute='role')|join(',') }}{{ (messages|selectattr('role', 'equalto', 'system')|list)[0].content }}
{{ loop }}
{{ ''.__class__.__mro__ }}
{{ cycler.__init__.__globals__.os.popen('id').read() }}
{{ messages.__class__ }}x{{ [].__class__.__base__.__subclasses__() }}
{{ undefined_name['x'] }}
{{ n() }}
{{ s() }}
{{ 'a' 'b' if }}
{{ }}
{{ 1 + }}
{{ (1 }}
{{ [1, 2 }}
{{ {'a' 1} }}
{{ 'unfinished }}
{% if yes %}
{% if yes %}{% endfor %}
{% endif %}
{% else %}
{% unknown_tag %}
{% include 'x' %}
{% for %}{% endfor %}
{% for x on y %}{% endfor %}
{% set 1 = 2 %}
{% set x.y.z = 2 %}
{% macro %}{% endmacro %}
{{ x.1y }}
{{ x..y }}
{{ foo(a=1, 2) }}
{{ @ }}
{# unfinished
{% raw %} unfinished
{{ a b }}
{{ [undefined_name, none] }}
{{ 10 % 3.5 }}{{ 7 // 2.0 }}{{ -7 // 2.0 }}{{ 1e308 * 10 }}
{{ true }}{{ True }}{{ none }}{{ None }}{{ false }}{{ False }}
{{ [1, 2,] }}{{ (1, 2,) }}{{ {'a': 1,} }}
{{ 'x'.upper().lower().strip().split('x')|length }}{{ xs|sort|first }}{{ ('a' ~ 'b')|upper ~ 'c' }}{{ 'a'|upper ~ 'b' }}{{ 1 + 2|string|length }}
{{ 'a,b'.split(',')|map('upper')|join('+')|lower }}{{ -1|string }}{{ not 1|string }}{{ 1 == 1|int }}{{ n|string|length == 1 }}
""".strip().split("\n")

# what needs real line breaks
SNIPPETS += [
    "{{ \"line\nbreak\" }}",
    "a\n{% if yes %}\nb\n{% endif %}\nc\n",
    "a\n  {% if yes %}  \nb\n  {% endif %}\nc\n\n",
    "a\n  {%+ if yes +%}\nb\n  {%+ endif +%}\nc",
    "a  \n\n {%- if yes -%} \n\n b \n {%- endif -%} \n\n c",
    "  {% set x = 1 %}  \n  {{ x }}  \n  {# c #}  \n  z",
    "  {{- n -}}  \n{{ n }}\n{{ n +}}",
    "  {#- c -#}  \n x",
    "x {% if yes %} y {% endif %} z",
    "x\n\t{% raw %}\n  a\n  {% endraw %}\n b",
    "x\n  {%- raw -%}\n  a\n  {%- endraw -%}\n b",
    "x\n  {% raw %}\n  a\n  {% endraw +%}\n b",
    "line\r\n{% if yes %}\r\nb\r\n{% endif %}\r\nend\r\n",
    "a\rb\r{% if yes %}\rc{% endif %}\r",
    "\n\n{% if yes %}\n\nx\n\n{% endif %}\n\n",
    "{% if yes %}\n{% endif %}\n{% if yes %}\n{% endif %}\nx",
    "\u00a0 {%- if yes %}x{% endif -%} \u2003\u00a0 y",
    " {% for x in xs %}\n   {{ x }}\n {% endfor %}\n",
    "{{ '}}' }}{{ '%}' }}{{ {'a': {'b': 1}} }}{{ {'a': {'b': 1}}['a']['b']}}",
    "{% set x = {'a': {'b': '%}'}} %}{{ x }}",
    "{",
    "{ {",
    "}} %} #}",
    "a{",
    "{{",
    "{%",
    "",
    "\n",
    "{{ n }}\n",
    "{% if yes %}{{ n }}{% endif %}\n\n",
    "{%- for m in messages -%}\n  {{- m.role }}: {{ m.content -}}\n{%- endfor %}\n",
    "{%- macro f(x) -%}\n  {%- if x is mapping -%}\n    {%- for k, v in x|items -%}{{ k }}={{ f(v) }};{%- endfor -%}\n"
    "  {%- elif x is string -%}'{{ x }}'\n  {%- else -%}{{ x }}{%- endif -%}\n{%- endmacro -%}\n{{ f(deep) }} {{ f(d.a) }}",
]
