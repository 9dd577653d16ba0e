/* tests/template_test.c - chat templates: features, hostile templates, limits, and seeded
 * mutations.
 *
 * Owns: what must hold without Python at hand; template_live.py compares with jinja2. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/template.h"
#include "tests/sweep.h"

#include <cmocka.h> // last: it defines a macro called fail

#define OUT_BYTES (1 << 20)

static char out_text[OUT_BYTES + 1];

static const char MESSAGES[] =
    "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"H\\u00e9 {{ "
    "7 * 7 }} {% raw %}\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":"
    "\"f\","
    "\"arguments\":{\"x\":[1,2.5,true,null]}}}]},{\"role\":\"tool\",\"content\":\"\"}]";

static const char CHATML[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
    "Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/* Uses about everything; mutations of it reach most of the interpreter. */
static const char RICH[] =
    "{%- macro show(v, depth=0) %}\n  {%- if v is mapping %}{%- for k, x in v|items %}{{ k }}={{ "
    "show(x, depth + 1) }};"
    "{%- endfor %}\n  {%- elif v is iterable and v is not string %}[{% for x in v %}{{ show(x) }}"
    "{{ ',' if not loop.last }}{% endfor %}]{%- else %}{{ v|string|upper }}{% endif %}\n{%- "
    "endmacro %}\n"
    "{#- comment -#}\n{%- set ns = namespace(n=0, text='', seen=[]) %}\n{%- if tools is not none "
    "and tools|length > 0 %}"
    "{{ tools|tojson(indent=2) }}{% endif %}\n{%- for m in messages if m.role != 'tool' %}\n"
    "{%- set ns.n = ns.n + 1 %}{%- set body = m.content if m.content is string else '' %}\n"
    "{%- if loop.index0 % 2 == 1 and not loop.last %}{{ '{}-{}'.format(m['role'], ns.n) }}{%- elif "
    "loop.previtem %}"
    "{{ body.split(' ')[-1]|trim|replace('e', \"E\") ~ body[::-1][1:3] }}{% endif %}\n"
    "{%- for call in m.tool_calls|default([]) %}{{ call.function|tojson }}{{ "
    "show(call.function.arguments) }}"
    "{{ call.function.arguments.x|select('number')|map('string')|join('+') }}{% endfor %}\n"
    "{%- set ns.text = ns.text + body %}{% if ns.n > 30 %}{% break %}{% endif %}\n{%- endfor %}\n"
    "{% raw %}{{ raw }}{% endraw %}{% filter upper %}{{ ns.text.strip()[:20] }}{% endfilter %}"
    "{% set block | trim %}  {{ messages|map(attribute='role')|unique|sort|list }} {% endset %}{{ "
    "block }}"
    "{{ '{1}|{0}'.format(1, 'b') }}{{ {'b': 1, 'a': (1, 2.5e3, none)}|dictsort }}{{ range(2, 9, "
    "3)|list }}"
    "{{ 'a' in 'abc' and 1 < 2 <= 3 or x.y }}{{ -7 // 2 * 2 }}{{ 'x\\u00e9\\n'|indent(2, true) }}"
    "{{ messages|selectattr('role', 'equalto', 'user')|first|string if false else "
    "messages[0].content.title() }}"
    "{% if add_generation_prompt %}{{ bos_token }}{{ strftime_now('%Y') }}{% endif %}"
    "{% for k, v in {'b': {'y': {}}, 'a': {}}|dictsort %}{{ k }}{{ v|length }}{% else %}none"
    "{% endfor %}{{ show([1], depth=2) }}{{ messages|rejectattr('content')|map('first')|list }}";

static enum err render_with(const char *text, int64_t n, const json_t *messages,
                            const json_t *extra, char *out, int64_t cap, int64_t *n_out)
{
    struct template *t;
    struct template_input in = {.messages = messages,
                                .extra = extra,
                                .add_generation_prompt = 1,
                                .bos_token = "<s>",
                                .now_epoch = 1753876543};
    enum err e = template_parse(&t, text, n, "x.jinja");
    if (e != OK) {
        assert_null(t);
        return e;
    }
    e = template_render(t, &in, out, cap, n_out);
    template_free(t);
    return e;
}

static enum err render(const char *text)
{
    json_t *messages = json_loads(MESSAGES, 0, NULL);
    int64_t n = 0;
    enum err e = render_with(text, (int64_t)strlen(text), messages, NULL, out_text, OUT_BYTES, &n);
    out_text[n] = 0;
    json_decref(messages);
    return e;
}

static void expect(const char *text, const char *want)
{
    if (render(text) != OK)
        fail_msg("%s: %s", text, err_text());
    assert_string_equal(out_text, want);
}

static void expect_error(const char *text, enum err want, const char *part)
{
    enum err e = render(text);
    if (e != want || !strstr(err_text(), part))
        fail_msg("%.200s: error %d, '%.200s'", text, e, e == OK ? out_text : err_text());
}

static void test_chatml(void **state)
{
    (void)state;
    json_t *messages = json_loads("[{\"role\":\"user\",\"content\":\"Hi\"}]", 0, NULL);
    int64_t n;
    assert_int_equal(
        render_with(CHATML, sizeof CHATML - 1, messages, NULL, out_text, OUT_BYTES, &n), OK);
    out_text[n] = 0;
    assert_string_equal(
        out_text,
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
        "Hugging Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    json_decref(messages);
}

static void test_features(void **state)
{
    (void)state;
    expect("{{ 1 + 2 * 3 }}{{ -7 // 2 }}{{ 7 / 2 }}{{ 'a' * 3 }}", "7-43.5aaa");
    expect("{{ [0.1, 100.0, 1e15, 1e16, 1.5e-7, 0.0001, 0.00001, -0.0, 123456789.125, 1e100] }}",
           "[0.1, 100.0, 1000000000000000.0, 1e+16, 1.5e-07, 0.0001, 1e-05, -0.0, 123456789.125, "
           "1e+100]");
    expect("{{ 9007199254740993 == 9007199254740992.0 }}{{ 9007199254740993 > 9007199254740992.0 }}"
           "{{ [3, 1, 2]|sort(reverse=true) }}{{ ['b', 'A', 'a']|sort }}",
           "FalseTrue[3, 2, 1]['A', 'a', 'b']");
    expect("{{ true }}{{ none }}{{ 1e22 }}{{ 0.1 }}{{ [1, 'a', {'b': none}] }}",
           "TrueNone1e+220.1[1, 'a', {'b': None}]");
    expect("{{ nothing }}|{{ messages[9] }}|{{ nothing is defined }}", "||False");
    expect("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc");
    expect("{% set x = 1 %}{% for i in [2] %}{% set x = i %}{% endfor %}{{ x }}", "1");
    expect(
        "{% set ns = namespace(x=1) %}{% for i in [2] %}{% set ns.x = i %}{% endfor %}{{ ns.x }}",
        "2");
    expect("{{ messages[::-1][0].role }}{{ messages[-2]['role'] }}", "toolassistant");
    expect("{{ messages[2].tool_calls[0].function|tojson }}",
           "{\"name\": \"f\", \"arguments\": {\"x\": [1, 2.5, true, null]}}");
    expect("{{ strftime_now('%d %b %Y') }}", "30 Jul 2025");
    expect("{{ tools is none }}{{ documents is none }}{{ eos_token is defined }}", "TrueTrueFalse");
}

/* Arguments of macros and filters: by position, by name, by default. */
static void test_calls(void **state)
{
    (void)state;
    static const char macro[] = "{% macro m(a, b=a) %}[{{ a }}{{ b }}]{% endmacro %}";
    static const struct {
        const char *call, *want;
        int fails;
    } calls[] = {{"m(1)", "[11]", 0},
                 {"m(1, 2)", "[12]", 0},
                 {"m(b=1, a=2)", "[21]", 0},
                 {"m()", "[]", 0},
                 {"m(1, 2, 3)", "takes 2 arguments, not 3", 1},
                 {"m(1, c=2)", "takes no argument 'c'", 1},
                 {"m(b=1, b=2)", "two values for an argument", 1},
                 {"m(1, a=2)", "two values for the argument 'a'", 1},
                 {"'a'|replace('a')", "needs the argument 'new'", 1},
                 {"[1]|sort(case_sensitive=1)", "does not take the argument 'case_sensitive'", 1},
                 {"[1]|sort(false, true)", "a string is needed", 1},
                 {"[1]|sort(attribute='a,b')", "one attribute", 1},
                 {"namespace({})", "named values", 1}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        char text[256];
        snprintf(text, sizeof text, "%s{{ %s }}", macro, calls[i].call);
        if (calls[i].fails)
            expect_error(text, ERR_ROW, calls[i].want);
        else
            expect(text, calls[i].want);
    }
    expect_error("{{ range(a=1, 2) }}", ERR_INPUT, "positional argument follows");
}

static void test_lists_and_text(void **state)
{
    (void)state;
    expect("{{ [{'a': 2}, {'a': 1}]|sort(attribute='b')|map(attribute='a')|list }}", "[2, 1]");
    expect("{{ [{'a': 2}, {'a': 1}]|sort(attribute='a')|map(attribute='a')|list }}", "[1, 2]");
    expect("{{ ['b', 'A', 'a']|unique|join }}{{ ['b', 'A']|min }}{{ {'b': 1, 'A': 2}|dictsort }}",
           "bAA[('A', 2), ('b', 1)]");
    expect("{{ ' a  b '.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'a\nb\r\n'.splitlines() }}",
           "['a', 'b']['a', 'b,c']['a', 'b']");
    expect("{{ '{}-{1}'.format(1) if false }}{{ '{}{n}{{}}'.format('h\xc3\xa9', n=2) }}",
           "h\xc3\xa9"
           "2{}");
    expect_error("{{ '{:>5}'.format(1) }}", ERR_ROW, "widths and types are not supported");
    expect_error("{{ '{} {0}'.format(1) }}", ERR_ROW, "cannot mix");
    expect_error("{{ '{9}'.format(1) }}", ERR_ROW, "too few values");
    expect_error("{{ '}'.format(1) }}", ERR_ROW, "a lone '}'");
    expect("{{ \"they're x-ray\".title() }}|{{ \"they're x-ray\"|title }}|{{ 'aB'|capitalize }}",
           "They'Re X-Ray|They're X-Ray|Ab");
    expect("{{ ('<'|safe) + '<' }}{{ '<'|e }}{{ 'a-b'|replace('-', '') }}", "<&lt;&lt;ab");
    expect_error("{{ 'a'|replace('', 'b') }}", ERR_ROW, "non-empty");
}

/* What Jinja has and no model's template uses is refused by name. */
static void test_left_out(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
        enum err e;
    } left_out[] = {
        {"{{ [1]|groupby('a') }}", "unknown filter 'groupby'", ERR_INPUT},
        {"{{ 'a'|center(5) }}", "unknown filter 'center'", ERR_INPUT},
        {"{{ 'a' is callable }}", "unknown test 'callable'", ERR_INPUT},
        {"{{ 'a'.center(5) }}", "'center' is undefined", ERR_ROW},
        {"{{ '%s' % 1 }}", "str % int does not work", ERR_ROW},
        {"{{ [1] * 2 }}", "list * int does not work", ERR_ROW},
        {"{{ [1] < [2] }}", "list and list cannot be compared", ERR_ROW},
        {"{{ 0x1f }}", "found 'x1f'", ERR_INPUT},
        {"{{ 2 ** 2 }}", "expected an expression, found '*'", ERR_INPUT},
        {"{{ range(*[1]) }}", "expected an expression, found '*'", ERR_INPUT},
        {"{{ dict() }}", "'dict' is undefined", ERR_ROW},
        {"{% for x in [1] recursive %}{% endfor %}", "found 'recursive'", ERR_INPUT},
        {"{% for x in [1] %}{{ loop(1) }}{% endfor %}", "loop is not a function", ERR_ROW},
        {"{% call m() %}{% endcall %}", "tag {% call %}", ERR_INPUT},
        {"{% with a = 1 %}{% endwith %}", "tag {% with %}", ERR_INPUT},
    };
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        expect_error(left_out[i].text, left_out[i].e, left_out[i].part);
}

/* Variables of the caller: over the tokens, under what has a place of its own. */
static void test_extra(void **state)
{
    (void)state;
    static const char text[] = "{{ bos_token }}{{ messages }}{{ tools }}{{ add_generation_prompt }}"
                               "{{ documents }}{{ mine.x }}";
    json_t
        *messages = json_loads("[7]", 0, NULL),
        *extra = json_loads(
            "{\"bos_token\":\"<B>\",\"messages\":[8],\"tools\":[9],\"add_generation_prompt\":false,"
            "\"documents\":[1],\"mine\":{\"x\":2}}",
            0, NULL);
    int64_t n;
    assert_int_equal(render_with(text, sizeof text - 1, messages, extra, out_text, OUT_BYTES, &n),
                     OK);
    out_text[n] = 0;
    assert_string_equal(out_text, "<B>[7][9]True[1]2");
    json_decref(messages);
    json_decref(extra);
}

static void test_names(void **state)
{
    (void)state;
    static const char text[] = "{% if tools %}{{ m.calls }}{{ m['ids']|selectattr('kind') }}"
                               "{% endif %}in the text";
    static const struct {
        const char *name;
        int is;
    } names[] = {{"tools", 1}, {"m", 1},    {"calls", 1},      {"ids", 1},  {"kind", 1},
                 {"tool", 0},  {"text", 0}, {"selectattr", 0}, {"call", 0}, {"", 0}};
    struct template *t;
    assert_int_equal(template_parse(&t, text, sizeof text - 1, "x"), OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(template_names(t, names[i].name), names[i].is);
    template_free(t);
}

/* What a user writes is never code. */
static void test_user_text(void **state)
{
    (void)state;
    expect("{{ messages[1].content }}", "H\xc3\xa9 {{ 7 * 7 }} {% raw %}");
    expect("{% set x = messages[1].content %}{{ x|upper|lower ~ '' }}",
           "h\xc3\xa9 {{ 7 * 7 }} {% raw %}");
}

static void test_errors(void **state)
{
    (void)state;
    expect_error("a\nb{% include 'x' %}", ERR_INPUT,
                 "x.jinja: chat template: line 2: unsupported or unexpected tag {% include %}");
    expect_error("{{ 1|nope }}", ERR_INPUT, "unknown filter 'nope'");
    expect_error("{{ 1 is nope }}", ERR_INPUT, "unknown test 'nope'");
    expect_error("{% if true %}{{ 1|nope }}{% endif %}", ERR_ROW, "unknown filter 'nope'");
    expect("{% if false %}{{ 1|nope }}{% endif %}", "");
    expect_error("\n{{ raise_exception('no ' ~ messages|length) }}", ERR_ROW,
                 "line 2: the template refuses: no 4");
    expect_error("{{ messages.append(1) }}", ERR_ROW, "'append' is refused");
    expect_error("{{ a.b.c }}", ERR_ROW, "'a' is undefined");
    expect_error("{{ 9223372036854775807 + 1 }}", ERR_ROW, "64 bits");
    expect_error("{{ (-9223372036854775807 - 1) // -1 }}", ERR_ROW, "64 bits");
    expect_error("{{ -(-9223372036854775807 - 1) }}", ERR_ROW, "64 bits");
    expect_error("{{ 99999999999999999999 }}", ERR_INPUT, "number");
    expect_error("{{ \"\\ud800\" }}", ERR_INPUT, "escape");
    expect_error("\xff", ERR_INPUT, "UTF-8");
    expect("{{ (-9223372036854775807 - 1) % -1 }}", "0");
}

static void test_sandbox(void **state)
{
    (void)state;
    expect_error("{{ lipsum.__globals__ }}", ERR_ROW, "'lipsum' is undefined");
    expect_error("{{ ''.__class__.__mro__[1].__subclasses__() }}", ERR_ROW,
                 "'__class__' is refused");
    expect_error("{{ messages['__class__'] }}", ERR_ROW, "'__class__' is refused");
    expect_error("{{ range.__init__ }}", ERR_ROW, "'__init__' is refused");
    expect_error("{{ '{0.__class__}'.format(1) }}", ERR_ROW, "no value for");
    expect_error("{{ messages|map(attribute='__class__')|list }}", ERR_ROW,
                 "'__class__' is refused");
}

/* text repeated n times between head and tail; the caller frees it. */
static char *repeated(const char *head, const char *text, int n, const char *tail)
{
    size_t bytes = strlen(head) + strlen(text) * (size_t)n + strlen(tail) + 1, at = 0;
    char *s = malloc(bytes);
    at += (size_t)snprintf(s + at, bytes - at, "%s", head);
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(s + at, bytes - at, "%s", text);
    snprintf(s + at, bytes - at, "%s", tail);
    return s;
}

static void expect_repeated(const char *head, const char *text, int n, const char *tail,
                            enum err want, const char *part)
{
    char *s = repeated(head, text, n, tail);
    if (want == OK)
        assert_int_equal(render(s), OK);
    else
        expect_error(s, want, part);
    free(s);
}

static void test_depth(void **state)
{
    (void)state;
    const int n = 60000;
    expect_repeated("{{ ", "(", n, "", ERR_INPUT, "nested too deeply");
    expect_repeated("{{ ", "[", n, "", ERR_INPUT, "nested too deeply");
    expect_repeated("{{ ", "{1:", n, "", ERR_INPUT, "nested too deeply");
    expect_repeated("{{ ", "-", n, "1 }}", ERR_INPUT, "nested too deeply");
    expect_repeated("{{ ", "not ", n, "1 }}", ERR_INPUT, "nested too deeply");
    expect_repeated("{{ 1", " + 1", n, " }}", ERR_INPUT, "nested too deeply");
    expect_repeated("{{ 1", " if 1 else 1", n, " }}", ERR_INPUT, "nested too deeply");
    expect_repeated("{{ a", ".a", n, " }}", ERR_INPUT, "nested too deeply");
    expect_repeated("{{ a", "|string", n, " }}", ERR_INPUT, "nested too deeply");
    expect_repeated("{{ a", "(a", n, " }}", ERR_INPUT, "nested too deeply");
    expect_repeated("", "{% if 1 %}", n, "", ERR_INPUT, "nested too deeply");
    expect_repeated("", "{% for a in b %}", n, "", ERR_INPUT, "nested too deeply");
    expect_repeated("{{ 1", " + 1", 200, " }}", OK, "");
    expect_repeated("{{ 1", " ~ 1", 10000, " }}", OK, "");
    expect_repeated("{% if 0 %}", "{% elif 0 %}", 10000, "{% endif %}", OK, "");
    expect_error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", ERR_ROW, "nested too deeply");
    expect_error("{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] "
                 "%}{% endfor %}{{ ns.x }}",
                 ERR_ROW, "nested too deeply");
    expect_error("{% set ns = namespace() %}{% set ns.ns = ns %}{{ ns }}", ERR_ROW,
                 "nested too deeply");
}

static void test_limits(void **state)
{
    (void)state;
    expect_error("{{ range(1000000000) }}", ERR_ROW, "range() of more than 100000 items");
    expect_error("{{ range(-9223372036854775807, 9223372036854775807) }}", ERR_ROW,
                 "range() of more");
    expect_error("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                 ERR_ROW, "more than 10000000 steps");
    expect_error(
        "{% for a in range(9999) %}{% for b in range(9999) if a == -1 %}{% endfor %}{% endfor %}",
        ERR_ROW, "steps");
    expect_error("{{ 'a' * 1000000000000000000 }}", ERR_ROW, "steps");
    expect_error("{{ 'a' * (16 * 1048576) }}", ERR_ROW, "more than 16 MiB of memory");
    expect_error("{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x "
                 "%}{% endfor %}",
                 ERR_ROW, "16 MiB");
    expect_error("{% set ns = namespace(x=[0]) %}{% for i in range(60) %}{% set ns.x = [ns.x, "
                 "ns.x] %}{% endfor %}{{ ns.x == ns.x|list }}",
                 ERR_ROW, "steps");
    expect_error("{% set ns = namespace(x=[0]) %}{% for i in range(60) %}{% set ns.x = [ns.x, "
                 "ns.x] %}{% endfor %}{{ ns.x|tojson|length }}",
                 ERR_ROW, "");
    expect_error("{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}", ERR_ROW,
                 "longer than 1048576 bytes");
    expect_error("{{ '{99999999999999999999}'.format(1) }}", ERR_ROW, "no value for");
    expect_error("{{ 'a'|indent(1000000000) }}{{ 'a\nb'|indent(1000000000) }}", ERR_ROW, "16 MiB");
    expect_error("{{ [1]|tojson(indent=1001) }}", ERR_ROW, "an indent of more than 1000");
    expect_error("{{ strftime_now('%9999999d') }}", ERR_ROW, "too long");
    /* work that is large per node is paid by its size: else each of these takes hours */
    static const char *const slow[] = {"s.strip(p)",
                                       "s|trim(p)",
                                       "s.split(p)",
                                       "s.splitlines()",
                                       "s.replace('a', 'b')",
                                       "s ~ s",
                                       "strftime_now('%c')",
                                       "s == s ~ ''",
                                       "s|length",
                                       "s|list|length",
                                       "q|tojson",
                                       "s.title()",
                                       "'a'|indent(9999, true)"};
    for (size_t i = 0; i < sizeof slow / sizeof *slow; i += (size_t)sweep(3, 1)) {
        char text[512];
        snprintf(text, sizeof text,
                 "{%% set s = 'a' * 200000 %%}{%% set q = '\"' * 200000 %%}{%% set p = 'a' * "
                 "100000 ~ 'b' %%}{%% set r = range(20000) %%}"
                 "{%% for i in range(99999) %%}{%% for j in range(99999) %%}{%% if %s %%}{%% endif "
                 "%%}{%% endfor %%}"
                 "{%% endfor %%}",
                 slow[i]);
        expect_error(text, ERR_ROW, "steps");
    }
}

static void test_long_template(void **state)
{
    (void)state;
    char *s = malloc(TEMPLATE_TEXT_BYTES_MAX + 1);
    int64_t n;
    memset(s, 'a', TEMPLATE_TEXT_BYTES_MAX + 1);
    assert_int_equal(render_with(s, TEMPLATE_TEXT_BYTES_MAX, NULL, NULL, out_text, OUT_BYTES, &n),
                     OK);
    assert_int_equal(n, TEMPLATE_TEXT_BYTES_MAX);
    assert_int_equal(
        render_with(s, TEMPLATE_TEXT_BYTES_MAX + 1, NULL, NULL, out_text, OUT_BYTES, &n),
        ERR_INPUT);
    free(s);
    expect_repeated("{{ [", "q,", 300000, "] }}", ERR_ROW, "");
}

/* Memory of a long conversation does not add up: each turn's scraps are given back. */
static void test_long_conversation(void **state)
{
    (void)state;
    enum { TURNS = 2000, BYTES = 4000 };
    static char body[BYTES + 1];
    json_t *messages = json_array();
    memset(body, 'x', BYTES);
    for (int i = 0; i < TURNS; i++)
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", body));
    int64_t cap = TURNS * (BYTES + 100LL), n;
    char *out = malloc((size_t)cap);
    if (render_with(CHATML, sizeof CHATML - 1, messages, NULL, out, cap, &n) != OK)
        fail_msg("%s", err_text());
    assert_true(n > TURNS * (int64_t)BYTES);
    /* a buffer that is one byte short is an error, and nothing is written behind it */
    char *tight = malloc((size_t)n - 1);
    int64_t n_tight;
    assert_int_equal(render_with(CHATML, sizeof CHATML - 1, messages, NULL, tight, n - 1, &n_tight),
                     ERR_ROW);
    assert_int_equal(n_tight, 0);
    free(tight);
    free(out);
    json_decref(messages);
}

/* Values stored in older objects outlive the statements that made them. */
static void test_kept_values(void **state)
{
    (void)state;
    expect("{% set ns = namespace(a=[]) %}{% macro put(v) %}{% set ns.a = ns.a + [v ~ '!'] %}{% "
           "endmacro %}"
           "{% for i in range(3) %}{{ put('v' ~ i) }}{% if put('w') %}{% endif %}{% set junk = 'x' "
           "* 1000 %}{% endfor %}"
           "{{ 'y' * 3 }}{{ ns.a|join(',') }}",
           "yyyv0!,w!,v1!,w!,v2!,w!");
    expect("{% set ns = namespace() %}{% for i in [1, 2] %}{% set ns.m %}<{{ i }}>{% endset %}{% "
           "endfor %}"
           "{{ 'z' * 50 }}{{ ns.m }}",
           "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz<2>");
}

/* A text that outgrows its 64 bytes moves to a larger place with all of its bytes when another
 * value was made behind it, as each 'v' ~ i does here. */
static void test_texts_that_move(void **state)
{
    (void)state;
    char want[40 * 5 + 16];
    for (int i = 0; i < 40; i++)
        snprintf(want + i * 5, sizeof want - (size_t)i * 5, "v%d,b", i + 10);
    expect(
        "{% macro v(i) %}{{ 'v' ~ i ~ ',b' }}{% endmacro %}"
        "{% set ns = namespace(t='') %}{{ '' ~ v(10) ~ v(11) ~ v(12) ~ v(13) ~ v(14) ~ v(15) "
        "~ v(16) ~ v(17) ~ v(18) ~ v(19) ~ v(20) ~ v(21) ~ v(22) ~ v(23) ~ v(24) ~ v(25) ~ v(26) "
        "~ v(27) ~ v(28) ~ v(29) ~ v(30) ~ v(31) ~ v(32) ~ v(33) ~ v(34) ~ v(35) ~ v(36) ~ v(37) "
        "~ v(38) ~ v(39) ~ v(40) ~ v(41) ~ v(42) ~ v(43) ~ v(44) ~ v(45) ~ v(46) ~ v(47) ~ v(48) "
        "~ v(49) }}",
        want);
}

static void test_deep_json(void **state)
{
    (void)state;
    char *s = repeated("", "[", 2000, "");
    char *all = repeated(s, "]", 2000, "");
    json_t *deep = json_loads(all, 0, NULL);
    int64_t n;
    assert_non_null(deep);
    assert_int_equal(render_with("{{ messages }}", 14, deep, NULL, out_text, OUT_BYTES, &n),
                     ERR_ROW);
    json_decref(deep);
    free(all);
    free(s);
}

static uint64_t seed;

static int64_t below(int64_t n)
{
    seed = mix64(seed);
    return (int64_t)(seed % (uint64_t)n);
}

static const char *const SPLICES[] = {
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    "-",
    "+",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "'",
    "\"",
    "\\",
    "|",
    ".",
    ",",
    ":",
    "~",
    "//",
    " if ",
    " else ",
    " in ",
    " not ",
    " is ",
    "endif",
    "for ",
    "endfor",
    "set ",
    "macro ",
    "endmacro",
    "loop",
    "9999999",
    "-1",
    "0",
    "none",
    "[::]",
    "|list",
    "|tojson",
    "|first",
    "|reverse",
    "|sort",
    "|string",
    "|safe",
    "|e",
    ".items()",
    "ns",
    "m",
    "show",
    "x",
    "messages",
    "*",
    "\xc3\xa9",
    "\n",
    " ",
    "%",
    "|items",
    "|map('length')",
    "[1:]",
    ".split()",
    "|join",
    "|indent",
    "break",
};

/* One template with a few seeded edits: whatever it does, it ends in OK or an error of its own. */
static void mutate(const char *from, int64_t n_from, const json_t *messages)
{
    static char text[16384];
    int64_t n = n_from, n_out, edits = 1 + below(6);
    memcpy(text, from, (size_t)n);
    for (int64_t i = 0; i < edits; i++) {
        int64_t at = below(n), span = min_i64(1 + below(12), n - at);
        const char *splice = SPLICES[below((int64_t)(sizeof SPLICES / sizeof *SPLICES))];
        int64_t n_splice = (int64_t)strlen(splice);
        switch (below(4)) {
        case 0: // remove
            memmove(text + at, text + at + span, (size_t)(n - at - span));
            n = max_i64(n - span, 1);
            break;
        case 1: // insert a token
            memmove(text + at + n_splice, text + at, (size_t)(n - at));
            memcpy(text + at, splice, (size_t)n_splice);
            n += n_splice;
            break;
        case 2: // repeat a piece
            memmove(text + at + span, text + at, (size_t)(n - at));
            n += span;
            break;
        default: // any byte
            text[at] = (char)below(256);
            break;
        }
    }
    char *copy = malloc((size_t)n); // exact, so that reading past it shows
    memcpy(copy, text, (size_t)n);
    enum err e = render_with(copy, n, messages, NULL, out_text, 65536, &n_out);
    assert_true(e == OK || e == ERR_INPUT || e == ERR_ROW);
    free(copy);
}

static void test_mutations(void **state)
{
    (void)state;
    const char *from_env = getenv("TEMPLATE_SEED");
    uint64_t first = from_env ? strtoull(from_env, NULL, 10) : 1;
    int rounds = getenv("TEMPLATE_ROUNDS") ? atoi(getenv("TEMPLATE_ROUNDS")) : sweep(500, 4000);
    json_t *messages = json_loads(MESSAGES, 0, NULL);
    for (int i = 0; i < rounds; i++) {
        seed =
            first + (uint64_t)i; // a failure is replayed with TEMPLATE_SEED=that TEMPLATE_ROUNDS=1
        mutate(RICH, sizeof RICH - 1, messages);
        mutate(CHATML, sizeof CHATML - 1, messages);
    }
    json_decref(messages);
}

/* Every cut of a template is parsed without reading past its end. */
static void test_truncations(void **state)
{
    (void)state;
    json_t *messages = json_loads(MESSAGES, 0, NULL);
    int64_t n_out;
    for (int64_t n = 0; n < (int64_t)sizeof RICH; n++) {
        char *copy = malloc((size_t)n + 1);
        memcpy(copy, RICH, (size_t)n);
        char *exact = realloc(copy, (size_t)max_i64(n, 1));
        enum err e = render_with(exact, n, messages, NULL, out_text, OUT_BYTES, &n_out);
        assert_true(e == OK || e == ERR_INPUT || e == ERR_ROW);
        free(exact);
    }
    json_decref(messages);
}

static void test_rich(void **state)
{
    (void)state;
    static const char call[] = "{\"name\": \"f\", \"arguments\": {\"x\": [1, 2.5, true, null]}}";
    if (render(RICH) != OK)
        fail_msg("%s", err_text());
    assert_non_null(strstr(out_text, call));
    assert_non_null(strstr(out_text, "X=[1,2.5,TRUE,NONE];")
                        ? out_text
                        : strstr(out_text, "x=[1,2.5,TRUE,NONE];"));
    assert_non_null(strstr(out_text, "['assistant', 'system', 'tool', 'user']b|1[('a', (1, 2500.0, "
                                     "None)), ('b', 1)][2, 5, 8]True"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chatml),        cmocka_unit_test(test_features),
        cmocka_unit_test(test_calls),         cmocka_unit_test(test_lists_and_text),
        cmocka_unit_test(test_left_out),      cmocka_unit_test(test_extra),
        cmocka_unit_test(test_names),         cmocka_unit_test(test_user_text),
        cmocka_unit_test(test_errors),        cmocka_unit_test(test_sandbox),
        cmocka_unit_test(test_depth),         cmocka_unit_test(test_limits),
        cmocka_unit_test(test_long_template), cmocka_unit_test(test_long_conversation),
        cmocka_unit_test(test_kept_values),   cmocka_unit_test(test_texts_that_move),
        cmocka_unit_test(test_deep_json),     cmocka_unit_test(test_rich),
        cmocka_unit_test(test_mutations),     cmocka_unit_test(test_truncations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
