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
    "tree": [{"n": "a", "kids": [{"n": "b"}, {"n": "c", "kids": [{"n": "d"}]}]}, {"n": "e"}],
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
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }}
{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1 / 3 }} {{ 10 / 5 }} {{ 1e3 }} {{ 1_000 }} {{ 0x1f }} {{ 0b101 }} {{ 0o17 }} {{ 1.5e-3 }} {{ 2.0 ** 0.5 }}
{{ 1 / 0 }}
{{ 5 % 0 }}
{{ 1.0 // 0 }}
{{ -n }} {{ +n }} {{ -f }} {{ - n + 1 }} {{ -yes }} {{ --n }} {{ -n|abs }} {{ (-n)|abs }} {{ -2 ** 2 }}
{{ 'ab' * 3 }}{{ 3 * 'ab' }}{{ [1] * 2 }}{{ 'x' * -1 }}{{ yes + 1 }}{{ yes * 'a' }}{{ [1] + [2] }}{{ (1,) + (2,) }}
{{ [1] + (2,) }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ 'a' - 'b' }}
{{ none + 1 }}
{{ 1 < 2 < 3 }}{{ 1 < 2 > 5 }}{{ 1 == 1.0 == true }}{{ 'a' < 'b' }}{{ [1, 2] < [1, 3] }}{{ (1,) == (1,) }}{{ [1] == (1,) }}{{ 'a' != 'b' }}
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
{{ 1 is eq 1 }}{{ 1 is equalto(2) }}{{ 1 is ne 2 }}{{ 1 is lt 2 }}{{ 1 is gt 2 }}{{ 2 is ge 2 }}{{ 2 is le 1 }}{{ 1 is sameas 1 }}{{ none is sameas none }}{{ 1 is in [1] }}
{{ 'abc' is lower }}{{ 'ABC' is upper }}{{ 'Abc' is lower }}{{ '1' is upper }}{{ range is callable }}{{ n is callable }}{{ s.strip is callable }}{{ s is callable }}
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
{{ 'a-b-c'|replace('-', '+') }}{{ 'aaa'|replace('a', 'b', 2) }}{{ 'abc'|replace('', '-') }}{{ 'abc'.replace('', '-', 2) }}{{ ''.replace('', 'x') }}{{ 121|replace(1, 'x') }}{{ 'aé'.replace('', '.') }}
{{ xs|join }}{{ xs|join(', ') }}{{ pairs|join('-', attribute='k') }}{{ 'abc'|join('.') }}{{ [1, none, 'x', yes]|join('|') }}{{ u|join(',') }}{{ d|join(',') }}
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
{{ words|map('upper')|list }}{{ words|map('replace', 'a', 'x')|list }}{{ xs|map('string')|join('-') }}{{ pairs|map(attribute='q', default='D')|list }}{{ [[1, 2], [3]]|map('length')|list }}{{ [[1, 2], [3]]|map('first')|list }}
{{ [[1, [5, 6]]]|map(attribute='1.0')|list }}{{ [deep]|map(attribute='a.b.0.c')|list }}{{ pairs|map(attribute='k')|map('lower')|unique|list }}
{{ xs|map('nothing')|list }}
{{ xs|select('nothing')|list }}
{% if pairs|selectattr('nope') %}generators are true{% endif %}{% if (pairs|selectattr('nope')|list) %}no{% endif %}
{% set g = xs|map('string') %}{{ g|list }}{{ g|list }}{% for x in g %}never{% endfor %}
{{ xs|sort }}{{ words|sort }}{{ words|sort(case_sensitive=true) }}{{ xs|sort(reverse=true) }}{{ pairs|sort(attribute='k')|map(attribute='v')|list }}{{ pairs|sort(attribute='k', reverse=true)|map(attribute='v')|list }}
{{ mixed|sort }}
{{ words|unique|list }}{{ [1, 1.0, true, 2, 2]|unique|list }}{{ words|unique(true)|list }}{{ pairs|unique(attribute='k')|map(attribute='v')|list }}
{{ xs|min }}{{ xs|max }}{{ words|min }}{{ words|max }}{{ []|min }}{{ pairs|max(attribute='v') }}{{ xs|sum }}{{ pairs|sum(attribute='v') }}{{ [[1], [2]]|sum(start=[]) }}
{{ xs|reverse|list }}{{ 'abc'|reverse }}{{ (1, 2)|reverse|list }}{{ d|reverse|list }}{{ uni|reverse }}
{{ 'abc'|list }}{{ d|list }}{{ (1, 2)|list }}{{ d.items()|list }}{{ d.keys()|list }}{{ d.values()|list }}{{ range(3)|list }}
{{ d|items|list }}{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}{{ u|items|list }}
{{ xs|items|list }}
{{ d|dictsort }}{{ d|dictsort(true) }}{{ {'b': 1, 'a': 2}|dictsort(by='value') }}{{ {'b': 1, 'a': 2}|dictsort(reverse=true) }}{% for k, v in d|dictsort %}{{ k }}{% endfor %}
{{ 5|string + '!' }}{{ none|string }}{{ u|string }}{{ [1]|string }}{{ f|string }}{{ yes|string|lower }}
{{ '42'|int }}{{ '4.9'|int }}{{ 'x'|int }}{{ 'x'|int(7) }}{{ 3.9|int }}{{ -3.9|int }}{{ none|int }}{{ yes|int }}{{ ' 12 '|int }}{{ '1_000'|int }}{{ 'ff'|int(base=16) }}{{ ''|int }}{{ '-5'|int }}{{ '1e3'|int }}
{{ '4.5'|float }}{{ 'x'|float }}{{ 'x'|float(1.5) }}{{ 3|float }}{{ none|float }}{{ 'inf'|float }}{{ '1e400'|float }}{{ 'nan'|float }}{{ '  2 '|float }}{{ '1_0.5'|float }}
{{ u|int }}
{{ u|float }}
{{ 2.567|round }}{{ 2.567|round(2) }}{{ 2.5|round }}{{ 3.5|round }}{{ 7|round }}{{ 2.1|round(0, 'ceil') }}{{ 2.19|round(1, 'floor') }}{{ 0.125|round(2) }}{{ 2.675|round(2) }}
{{ -5|abs }}{{ 2.5|abs }}{{ (-2.5)|abs }}{{ false|abs }}
{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent(2, blank=true) }}|{{ 'a\nb'|indent('> ', first=True) }}|{{ 'a\n'|indent }}|{{ ''|indent }}|{{ 'a\nb'|indent(width=1) }}|
{{ 5|indent }}
{{ [1, 2, 3, 4, 5]|batch(2)|list }}{{ [1, 2, 3]|batch(2, 'x')|list }}{{ []|batch(3)|list }}
{{ name|e }}{{ name|escape|length }}{{ name|safe }}{{ (name|e) ~ '<' }}{{ (name|e) + '<' }}{{ '<' + (name|safe) }}{{ name|safe|upper }}{{ (name|safe).split('&') }}
{{ '%s-%d-%5.2f|%-5s|%05d|%x|%%|%r'|format('a', 3, 2.5, 'b', 42, 255, 'q') }}{{ '%s' % 'x' }}{{ '%s %s' % (1, 2) }}{{ '%(a)s' % {'a': 1} }}{{ '%(a)s'|format(a=1) }}{{ '%5s|%+d|% d|%e|%g|%X|%o' % ('é', 5, 5, 12345.678, 0.0001, 255, 8) }}{{ '%s' % none }}{{ '%s' % [1, 2] }}{{ '%.2s' % 'abc' }}{{ '%d' % 3.9 }}{{ '%i' % yes }}{{ '%#x' % 255 }}
{{ '%d' % 'x' }}
{{ '%s %s' % 'x' }}
{{ '%s' % (1, 2) }}
{{ 'x' % 1 }}
{{ '%y' % 1 }}
{{ '{} {}'.format(1, 'b') }}{{ '{0} {1} {0}'.format('a', 'b') }}{{ '{a}{{}}'.format(a=5) }}{{ '{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{:x}|{:*^7}'.format('a', 'b', 'c', 42, 2.5, 255, 'm') }}{{ '{!r}'.format('q') }}{{ '{:5}|{:5}|{:+}'.format('s', 3, 4) }}{{ '{:.1%}'.format(0.256) }}{{ '{} {}'.format(none, [1]) }}{{ '{:>8}'.format(1.5) }}{{ '{:.2}'.format('abc') }}{{ '{:=+5d}'.format(3) }}
{{ '{}'.format() }}
{{ '{'.format(1) }}
{{ '{a}'.format(b=1) }}
{{ '{:d}'.format('x') }}
{{ '{} {0}'.format(1) }}
{{ text.split() }}{{ text.split('\n') }}{{ csv.split(',') }}{{ csv.split(',', 1) }}{{ csv.rsplit(',', 1) }}{{ text.split(none, 2) }}{{ text.rsplit(none, 2) }}{{ ''.split() }}{{ ''.split(',') }}{{ '  a  '.split() }}{{ ' a b '.split(maxsplit=1) }}{{ ' a b '.rsplit(maxsplit=1) }}{{ 'aXXbXXc'.split('XX')[-1] }}{{ '   '.split() }}{{ ' a b c '.split(none, 0) }}{{ 'a b  '.rsplit(none, 5) }}
{{ 'a'.split('') }}
{{ text.splitlines() }}{{ text.splitlines(true) }}{{ ''.splitlines() }}{{ 'a\n'.splitlines() }}{{ '\n\n'.splitlines() }}{{ 'a\u2028b\x0bc'.splitlines() }}
{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith('bc') }}{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.startswith('') }}{{ 'a'.startswith('abc') }}{{ 'abc'.endswith(('c',)) }}
{{ 'abc'.startswith(1) }}
{{ 'abcabc'.find('c') }}{{ 'abcabc'.rfind('c') }}{{ 'abc'.find('x') }}{{ 'é世c'.index('c') }}{{ 'banana'.count('an') }}{{ 'abc'.count('') }}{{ 'a=b=c'.partition('=') }}{{ 'a=b=c'.rpartition('=') }}{{ 'a'.partition('=') }}{{ 'a'.rpartition('=') }}{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('bc') }}
{{ 'abc'.index('x') }}
{{ 'abcabc'.find('c', 3) }}{{ 'abcabc'.find('a', 1, 3) }}{{ 'éaéa'.find('a', 2) }}{{ 'éaéa'.rfind('a', 0, 3) }}{{ 'éaéa'.index('é', 1) }}{{ 'abc'.find('', 3) }}{{ 'abc'.find('', 4) }}{{ 'abc'.find('', 2, 1) }}{{ 'abcabc'.find('c', -3) }}{{ 'abcabc'.rfind('a', -99, -1) }}{{ 'abc'.find('b', none, none) }}
{{ 'aéaéa'.count('a', 1) }}{{ 'aéaéa'.count('a', 1, -1) }}{{ 'abc'.count('', 3) }}{{ 'abc'.count('', 4) }}{{ 'abc'.startswith('b', 1) }}{{ 'abc'.startswith('', 4) }}{{ 'abc'.startswith('', 3) }}{{ 'abc'.endswith('b', 0, 2) }}{{ 'abc'.endswith(('b', 'x'), 1, -1) }}{{ 'éa'.startswith('a', 1, 9) }}{{ 'abc'.startswith('', 2, 1) }}
{{ 'abc'.index('a', 1) }}
{{ 'abc'.index('', 4) }}
{{ 'abc'.find('a', 'b') }}
{{ pairs|sort(attribute='nope')|map(attribute='v')|list }}{{ [{'a': 1}, {'a': 1}]|sort }}{{ xs|sort(attribute='nope') }}
{{ pairs|sort(attribute='on') }}
{{ undefined_name is divisibleby 2 }}
{{ 4 is divisibleby undefined_name }}
{{ 'abc'.isalpha() }}{{ '12'.isdigit() }}{{ 'a1'.isalnum() }}{{ ' '.isspace() }}{{ ''.isspace() }}{{ 'ABC'.isupper() }}{{ 'abc'.islower() }}{{ 'é'.isalpha() }}
{{ ', '.join(words) }}{{ ''.join([]) }}{{ '-'.join('abc') }}{{ ','.join(d) }}
{{ ', '.join(xs) }}
{{ d.get('b') }}{{ d.get('q') }}{{ d.get('q', 'z') }}{{ d.get('q', default=1) if no else '' }}{{ d['items'] }}{{ d.items is callable }}{{ d['get'] is callable }}{{ {'a': 1}.copy() }}
{{ d.get([]) }}
{{ xs.append(1) }}
{{ xs.append }}|{{ xs.append is defined }}
{{ d.update({'a': 1}) }}
{{ d.pop('b') }}
{{ xs.index(1) }}{{ xs.count(3) }}{{ (1, 1).count(1) }}{{ xs.copy() }}
{{ xs.index(99) }}
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
{{ dict(a=1, b='x') }}{{ dict({'a': 1}, b=2) }}{{ dict([['a', 1], ('b', 2)]) }}{{ dict() }}
{% set ns = namespace(a=1, b=[]) %}{% set ns.a = ns.a + 1 %}{% set ns.c = 'new' %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns.nope }}{{ ns.a is defined }}{{ ns.q is defined }}{{ ns['a'] is defined }}
{% set ns = namespace({'a': 1}) %}{{ ns.a }}{{ ns == ns }}
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
{% for x in xs %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.cycle('a', 'b') }};{% endfor %}
{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }}{% endfor %}{{ loop is defined }}
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
{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}{{ m(1) }}
{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}
{% macro f(k) %}{% if k > 0 %}{{ k }}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% set x = 'out' %}{% macro m() %}{{ x }}{% set x = 'in' %}{{ x }}{% endmacro %}{{ m() }}{{ x }}
{% macro m() %}{{ later }}{% endmacro %}{{ m() }}{% set later = 5 %}{{ m() }}
{% set ns = namespace(k=0) %}{% macro inc() %}{% set ns.k = ns.k + 1 %}{{ ns.k }}{% endmacro %}{{ inc() }}{{ inc() }}{{ ns.k }}
{% macro m(x) %}[{{ caller(x) }}{{ caller(2) }}]{% endmacro %}{% call(v) m(1) %}<{{ v }}{{ n }}>{% endcall %}
{% macro m(x) %}[{{ caller() }}]{% endmacro %}{% call m(1) %}body{% endcall %}{{ m(2) }}
{% macro m(x) %}[{{ x }}]{% endmacro %}{% call m(1) %}body{% endcall %}
{% macro outer() %}{% macro inner(q) %}<{{ q }}>{% endmacro %}{{ inner(1) }}{% endmacro %}{{ outer() }}{{ inner is defined }}
{{ m is defined }}{% macro m() %}x{% endmacro %}{{ m is defined }}{{ m is callable }}
{% for x in xs %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}
{% macro m(a, b=2) %}{{ a }}-{{ b }}{{ varargs }}{{ kwargs }};{% endmacro %}{{ m(*xs) }}{{ m(*xs, **d) }}{{ m(0, *xs, z=1, **{'y': 2, 'x': 3}) }}{{ m(**{'b': 1, 'a': 0}) }}{{ m(*[]) }}{{ m(*'ab', c=1, b2=2, **{}) }}{{ m(x=1, b=9, y=2, a=8, z=3) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(**{'a': 1, 'b': 2}) }}
{% macro m(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ m(b=1, **{'b': 2}) }}
{% macro m(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ m(**{1: 2}) }}
{% macro m(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ m(**[1]) }}
{% macro m(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ m(**undefined_name) }}
{% macro m(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ m(*undefined_name) }}
{% macro m(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ m(*none) }}
{{ f(*xs, 1) }}
{{ f(**d, *xs) }}
{{ f(**d, a=1) }}
{{ range(*[1, 4])|list }}{{ dict(a=1, **{'b': 2}) }}{{ 'a b'.split(*[' ']) }}{{ 'a-b'|replace(*['-', '+']) }}{{ d|tojson(**{'indent': 1}) }}{{ 3 is divisibleby(*[3]) }}{{ namespace(**{'q': 4}).q }}
{% macro m(x) %}[{{ caller(*x) }}]{% endmacro %}{% call(v, w) m([1, 2]) %}<{{ v }}{{ w }}>{% endcall %}
{% for p in tree recursive %}{{ loop.depth }}{{ loop.depth0 }}{{ loop.index }}{{ p.n }}{% if p.kids %}({{ loop(p.kids) }}){% endif %}{{ '' if loop.last else ',' }}{% endfor %}
{% for p in tree if p.n != 'b' recursive %}{{ p.n }}{{ loop.length }}{{ loop.previtem.n }}{{ loop(p.kids)|upper if p.kids is defined }}{% else %}none{% endfor %}
{% for p in tree recursive %}{% set x = p.n %}{{ loop(p.kids or []) }}{{ x }}{% else %}.{% endfor %}{{ x }}
{% set ns = namespace(n=0) %}{% for p in tree recursive %}{% set ns.n = ns.n + 1 %}{% if ns.n == 3 %}{% break %}{% endif %}{{ p.n }}{{ loop(p.kids or []) }}{% endfor %}{{ ns.n }}
{% for p in tree recursive %}{% set outer = loop %}{% for q in p.kids or [] %}{{ outer([q]) }}{% endfor %}{{ p.n }}{% endfor %}
{% for p in xs %}{{ loop([]) }}{% endfor %}
{% for p in tree recursive %}{{ x }}{% set x = p.n %}{{ loop(p.kids or []) }}{{ x }}{% endfor %}
{% for p in tree recursive %}{{ loop() }}{% endfor %}
{% for p in tree recursive %}{{ loop(5) }}{% endfor %}
{% for p in tree recursive %}{{ loop(tree) }}{% endfor %}
{% for k, v in {'b': {'y': {}, 'x': {}}, 'a': {}}|dictsort recursive %}{{ k }}[{{ loop(v|dictsort) }}]{% endfor %}
{% for g in pairs|groupby('k') %}{{ g.grouper }}:{{ g.list|map(attribute='v')|list }}{{ g[0] }}{{ g|length }};{% endfor %}{% for key, items in pairs|groupby('k', case_sensitive=true) %}{{ key }}{{ items|length }}{% endfor %}
{{ messages|groupby('role')|map('first')|list }}{{ pairs|groupby('on', default=false)|map(attribute='grouper')|list }}{{ []|groupby('x')|list }}{{ [[2, 'b'], [1, 'a'], [2, 'c']]|groupby(0) }}{{ (pairs|groupby('k'))[0]['grouper'] }}{{ (1, 2).grouper }}
{{ pairs|groupby('on') }}
{{ pairs|groupby }}
{{ xs|slice(2)|list }}{{ xs|slice(2, 'x')|list }}{{ [1, 2, 3, 4]|slice(2, 'x')|list }}{{ []|slice(3)|list }}{{ xs|slice(5)|list }}{{ xs|slice(-1)|list }}{% for col in range(7)|slice(3) %}{{ col }}{% endfor %}
{{ xs|slice(0)|list }}
{{ d|attr('items') is callable }}{{ d|attr('b') is defined }}{{ s|attr('nope') is defined }}{{ (s|attr('strip'))() }}
{{ undefined_name|attr('x') }}
{{ 'ab'|center(5) }}|{{ 'abc'|center(6) }}|{{ 'abcdef'|center(3) }}|{{ 7|center(4) }}|{{ 'x'|center|length }}|{{ 'ab'.center(5, '*') }}|{{ 'abc'.center(6, '-') }}|{{ 'é'.ljust(3, '.') }}|{{ 'é'.rjust(3) }}|{{ '-7'.zfill(4) }}|{{ '+7'.zfill(2) }}|{{ 'abc'.zfill(5) }}|{{ ''.zfill(2) }}|{{ 'a'.ljust(-4) }}
{{ 'a'.ljust(3, 'xy') }}
{{ 'a'.ljust('3') }}
{{ 'foo bar baz qux'|truncate(9) }}|{{ 'foo bar baz qux'|truncate(9, true) }}|{{ 'foo bar baz qux'|truncate(11) }}|{{ 'foo bar baz qux'|truncate(11, false, '...', 0) }}|{{ 'foo bar baz quxy'|truncate(11) }}|{{ 'foo bar baz quxyz'|truncate(11) }}|{{ 'foobarbazqux'|truncate(5, leeway=0) }}|{{ uni|truncate(4, true, '', 0) }}|{{ 'aé世🙂 b'|truncate(3, end='-', leeway=1) }}
{{ 'abc'|truncate(2) }}
{{ 5|truncate }}
{{ 'one two_x 3  é-f'|wordcount }}{{ ''|wordcount }}{{ n|wordcount }}{{ uni|wordcount }}
{{ name|forceescape }}{{ name|e|forceescape }}{{ (name|safe)|forceescape|length }}{{ (name|safe) is escaped }}{{ name is escaped }}{{ n is escaped }}
{{ 'upper' is filter }}{{ 'nope' is filter }}{{ 'odd' is test }}{{ 'nope' is test }}{{ '==' is test }}{{ 'tojson' is filter }}{{ (name|e) is escaped }}
{{ pairs|sort(attribute='k,v')|map(attribute='v')|list }}{{ pairs|sort(attribute='v,k', reverse=true)|map(attribute='v')|list }}{{ [{'a': 2, 'b': 'x'}, {'a': 1, 'b': 'y'}, {'a': 1, 'b': 'A'}]|sort(attribute='a,b')|map(attribute='b')|join }}{{ [{'a,b': 2}, {'a,b': 1}]|min(attribute='a,b') }}{{ [{'a,b': 2}, {'a,b': 2}]|unique(attribute='a,b')|list }}
{% filter upper %}abc{{ n }}{% endfilter %}{% filter trim|replace('a', 'b') %}  aaa {% endfilter %}
{% with a = 1, b = 2 %}{{ a }}{{ b }}{% set c = 3 %}{{ c }}{% endwith %}{{ a is defined }}{{ c is defined }}
{% set a = 'o' %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}{% with %}x{% endwith %}
{% generation %}text{{ n }}{% set q = 1 %}{% endgeneration %}{{ q is defined }}
{# comment #}a{#- x -#}  b  {#+ y +#}  c
{% raw %}{{ x }}{% if %}{# #}{% endraw %}|{%- raw -%}  {{ y }}  {%- endraw -%}  z
{{ "a\tb\\n\x41\u00e9\U0001F642\101\q\'" }}{{ 'it''s' }}{{ "a" 'b' }}
{{ 'a' if 'b' in 'abc' and not no else 'c' }}{{ (1, 2) if yes }}{{ 1, 2 }}{{ ('x' if no else 'y') ~ 'z' }}
{{ d.a.c|tojson }}{{ d|tojson }}{{ name|tojson }}{{ strange|tojson }}{{ uni|tojson }}{{ uni|tojson(ensure_ascii=true) }}{{ nil|tojson }}{{ yes|tojson }}{{ (1, 2)|tojson }}{{ {1: 2, none: 3, 1.5: 4, true: 5}|tojson }}
{{ d|tojson(indent=2) }}{{ []|tojson(indent=2) }}{{ {}|tojson(indent=4) }}{{ xs|tojson(indent=0) }}{{ xs|tojson(indent='--') }}{{ d|tojson(sort_keys=true) if no }}{{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }}{{ d|tojson(separators=(',', ':')) }}{{ d|tojson(true, 1) }}
{{ 'inf'|float|tojson }}{{ 'nan'|float|tojson }}{{ 1e22|tojson }}{{ 1.0|tojson }}
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
{{ '%s' % undefined_name }}
{{ [undefined_name, none] }}
{{ d.items() }}{{ d.keys() }}{{ {}.values() }}
{{ 2 ** 0.5 ** 2 }}{{ 10 % 3.5 }}{{ 7 // 2.0 }}{{ -7 // 2.0 }}{{ 1e308 * 10 }}
{{ true }}{{ True }}{{ none }}{{ None }}{{ false }}{{ False }}
{{ [1, 2,] }}{{ (1, 2,) }}{{ {'a': 1,} }}{{ dict(a=1,) }}
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
