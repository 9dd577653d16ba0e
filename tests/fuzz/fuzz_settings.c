/* tests/fuzz/fuzz_settings.c - flat files that people write: machine files, plans, --config files
 * and the command line, model configs. */
#include "engine/api/config.h"
#include "engine/api/plan_file.h"
#include "engine/model/dummy.h"
#include "engine/model/model.h"
#include "offload/machine_file.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <string.h>

/* ---- machine files: what was read can be written and read again ---- */

static void machine_one(const uint8_t *data, size_t n)
{
    struct machine m, again;
    char text[MACHINE_TEXT_BYTES];
    if (machine_text_parse(&m, (const char *)data, (int64_t)n, "m") != OK)
        return;
    for (int i = 0; i < N_MACHINE_RATES; i++)
        CHECK(m.rates[i].value >= 0 && m.rates[i].value <= machine_rates[i].max &&
              m.rates[i].spread >= 0 && m.rates[i].n >= 0);
    CHECK(m.threads >= 0 && m.threads <= 4096);
    const int n_text = machine_text_format(&m, "a\nb", text, sizeof text);
    CHECK(n_text > 0);
    if (machine_text_parse(&again, text, n_text, "again") != OK)
        again = (struct machine){0}; // a file of zeros says nothing any more
    CHECK(again.threads == m.threads);
    for (int i = 0; i < N_MACHINE_RATES; i++) {
        const struct rate *x = &m.rates[i], *y = &again.rates[i];
        CHECK(fabs(y->value - x->value) <= 1e-5 * x->value);
        CHECK(x->value == 0 || (y->n == x->n && fabs(y->spread - x->spread) <= 0.01 * x->spread));
    }
}

const struct fuzz_target fuzz_machine = {.name = "machine", .one = machine_one};

/* ---- plans ---- */

static void plan_one(const uint8_t *data, size_t n)
{
    static const struct config c = {.plan = FUZZ_DIR "/p"};
    static const struct model model = {.shape.n_layers = 4};
    static const struct run r = {.config = &c, .model = &model};
    struct plan_wish wish = {.batch = -1};
    fuzz_file("p", data, n);
    if (plan_file_read(&r, &wish) == OK)
        CHECK(wish.batch >= -1 && wish.batch <= 1 << 24);
}

const struct fuzz_target fuzz_plan = {.name = "plan", .one = plan_one};

/* ---- --config files, and words of a command line ----
 * The first byte is the command, the second says which of the two. */

static void config_one(const uint8_t *data, size_t n)
{
    static char words[4096]; // one behind the other, as a process gets them
    char *argv[64];
    int argc = 0;
    struct config c;
    if (n < 2)
        return;
    const enum config_command command = config_commands[data[0] % config_n_commands].id;
    const int as_words = data[1] & 1;
    data += 2;
    n -= 2;
    if (!as_words) {
        char flag[] = "--config", file[] = FUZZ_DIR "/c";
        char *const args[] = {flag, file};
        memcpy(argv, args, sizeof args);
        fuzz_file("c", data, n);
        (void)config_parse(&c, command, 2, argv);
        return;
    }
    if (n >= sizeof words)
        return;
    memcpy(words, data, n);
    words[n] = 0;
    for (char *at = words, *next; at && argc < 64; at = next) {
        next = strchr(at, '\n');
        if (next)
            *next++ = 0;
        argv[argc++] = at;
    }
    (void)config_parse(&c, command, argc, argv);
}

const struct fuzz_target fuzz_config = {.name = "config", .one = config_one};

/* ---- model configs ---- */

static void model_cfg_one(const uint8_t *data, size_t n)
{
    struct pack_provider p;
    fuzz_file("m.cfg", data, n);
    if (dummy_open(&p, FUZZ_DIR "/m.cfg") != OK)
        return;
    CHECK(!shape_check(&p.shape));
    for (int role = 0; role < N_ROLES; role++) {
        int rows, k;
        role_dims(&p.shape, (enum tensor_role)role, 0, &rows, &k);
        CHECK(rows >= 0 && k >= 0);
    }
    dummy_close(&p);
}

const struct fuzz_target fuzz_model_cfg = {.name = "model_cfg", .one = model_cfg_one};
