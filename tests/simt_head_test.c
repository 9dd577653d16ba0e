/* tests/simt_head_test.c - kernels/cuda/head.cu under the SIMT shim: ISA_EXACT's bytes, whatever
 * the slices, and the candidates of HEAD_FILTER as a set. */
#include "tests/simt_help.h"

static const struct ops exact = {.isa = ISA_EXACT, .compute = COMPUTE_F32};

enum { M = 3 };
#define CANDIDATES_BYTES ((int64_t)M * HEAD_SAMPLE_MAX * (int64_t)sizeof(struct head_candidate))

struct head_case {
    int want, n_top, n_edits;
    float temperature;
};
static const struct head_case cases[] = {
    {HEAD_SCORE, 0, 0, 0},
    {HEAD_SCORE | HEAD_TOP | HEAD_SAMPLE, 20, 5, 0.7f},
    {HEAD_SAMPLE, 0, 5, 0},
    {HEAD_SAMPLE, 0, 0, 0},
    {HEAD_TOP | HEAD_FILTER, 3, 5, 1},
    {HEAD_SCORE | HEAD_SAMPLE | HEAD_FILTER, 0, 0, 1.3f},
    {0, 0, 0, 0},
};
static const struct logit_edit edits[] = {
    {0, 1.5f, 0}, {6, 1, -3}, {15, 1, -INFINITY}, {1030, 1.1f, 9}, {4100, 1.2f, 2}};

static struct head_request request_of(int row, struct head_case c)
{
    // One row wants nothing, so that rows of a launch differ.
    return (struct head_request){.want = row == 1 ? 0 : c.want,
                                 .target = 5 + row * 700,
                                 .temperature = c.temperature,
                                 .n_top = c.n_top,
                                 .n_edits = c.n_edits,
                                 .place = M - 1 - row,
                                 .noise_key = mix64((uint64_t)row)};
}

/* What slices of `slice` numbers leave: on the device, or by the reference. */
static void head_run(const float *logits, int vocab, struct head_case c, int slice, int on_device,
                     struct head_result *results, struct head_candidate *candidates)
{
    const int n_edits = (int)(sizeof edits / sizeof *edits);
    struct head_request requests[M];
    struct logit_edit lists[M * 5];
    for (int row = 0; row < M; row++) {
        requests[row] = request_of(row, c);
        head_start(&results[row]);
        memcpy(lists + row * n_edits, edits, sizeof edits);
    }
    struct head_reduce_args a = {.logits = logits,
                                 .stride = vocab,
                                 .requests = requests,
                                 .results = results,
                                 .edits = lists,
                                 .candidates = candidates,
                                 .edits_stride = n_edits,
                                 .m = M};
    if (on_device) {
        a.logits = simt_of(logits, (int64_t)M * vocab * 4);
        a.requests = simt_of(requests, sizeof requests);
        a.results = simt_of(results, M * sizeof *results);
        a.edits = simt_of(lists, sizeof lists);
        a.candidates = simt_alloc(CANDIDATES_BYTES);
    }
    for (a.first = 0; a.first < vocab; a.first += slice) {
        a.n = vocab - a.first < slice ? vocab - a.first : slice;
        if (on_device)
            cuda_head_reduce(NULL, &exact, &a);
        else
            ops_run_head_reduce(&exact, &a);
        a.logits += slice;
    }
    if (!on_device)
        return;
    simt_get(results, a.results, M * sizeof *results);
    for (int row = 0; row < M; row++) {
        const int at = requests[row].place * HEAD_SAMPLE_MAX;
        simt_get(candidates + at, a.candidates + at,
                 results[row].n_filter * (int64_t)sizeof *candidates);
    }
}

/* Byte for byte but for the payload of NaNs; candidates as the host sorts them. */
static void head_compare(struct head_result *got, struct head_result *want,
                         struct head_candidate *got_c, struct head_candidate *want_c,
                         const char *what)
{
    for (int row = 0; row < M; row++) {
        if (isnan(want[row].sum) && isnan(got[row].sum))
            want[row].sum = got[row].sum;
        assert_same_bits(&got[row], &want[row], sizeof *got, what);
    }
    for (int row = 0; row < M; row++) {
        const int n = want[row].n_filter, at = (M - 1 - row) * HEAD_SAMPLE_MAX;
        qsort(got_c + at, (size_t)n, sizeof *got_c, candidate_order);
        qsort(want_c + at, (size_t)n, sizeof *want_c, candidate_order);
        assert_same_bits(got_c + at, want_c + at, n * (int64_t)sizeof *got_c, what);
    }
}

static void head_check(const float *logits, int vocab, struct head_case c, int slice, uint64_t seed)
{
    struct head_result got[M], want[M];
    struct head_candidate *got_c = take(CANDIDATES_BYTES), *want_c = take(CANDIDATES_BYTES);
    char what[120];
    snprintf(what, sizeof what, "head vocab %d slice %d want %d top %d edits %d T %g", vocab, slice,
             c.want, c.n_top, c.n_edits, (double)c.temperature);
    memset(got, 0, sizeof got);
    memset(want, 0, sizeof want);
    device_begin(seed);
    head_run(logits, vocab, c, slice, 1, got, got_c);
    assert_no_error(what);
    head_run(logits, vocab, c, HEAD_TILE, 0, want, want_c);
    head_compare(got, want, got_c, want_c, what);
    free(got_c);
    free(want_c);
}

static void head_is_exact(void **state)
{
    (void)state;
    static const int vocabs[] = {1, 7, 1024, 1500, 4096, 4097, 9000};
    for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++) {
        const int vocab = vocabs[v];
        float *logits = noise_array(41 + v, M * vocab, 8);
        for (int i = 0; i < M * vocab; i++) // many ties, zeros of both signs among them
            logits[i] = i % 3 ? logits[i] : rintf(logits[i]);
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            head_check(logits, vocab, cases[c], HEAD_TILE, c % 4);
            if (vocab > HEAD_TILE)
                head_check(logits, vocab, cases[c], 2 * HEAD_TILE, c % 4);
            if (vocab > 2 * HEAD_TILE)
                head_check(logits, vocab, cases[c], 3 * HEAD_TILE, c % 4);
        }
        free(logits);
    }
}

/* A warp has two tiles, a block 32: more of them than that. */
static void head_has_many_tiles(void **state)
{
    (void)state;
    const int vocab = 40 * HEAD_TILE + 77;
    float *logits = noise_array(47, (int64_t)M * vocab, 8);
    head_check(logits, vocab, (struct head_case){HEAD_SCORE, 0, 0, 0}, 64 * HEAD_TILE, 0);
    free(logits);
}

/* All equal, zeros of both signs, all masked, NaN or infinity in some tile. */
static void head_survives_odd_logits(void **state)
{
    (void)state;
    const int vocab = HEAD_TILE + 900;
    float *logits = take(M * vocab * 4);
    static const float fills[] = {0, -INFINITY, 1e-40f, NAN}, odd[] = {3, NAN, INFINITY};
    for (size_t f = 0; f < sizeof fills / sizeof *fills; f++)
        for (int where = -1; where < vocab; where += 4000)
            for (int kind = 0; kind < 3; kind++) {
                for (int i = 0; i < M * vocab; i++)
                    logits[i] = i % vocab == where ? odd[kind] : f == 0 && i % 2 ? -0.0f : fills[f];
                const int want = HEAD_SCORE | HEAD_TOP | (kind ? HEAD_FILTER : HEAD_SAMPLE);
                head_check(logits, vocab, (struct head_case){want, 20, 2, kind ? 1 : 0}, HEAD_TILE,
                           f % 4);
                if (where < 0)
                    break;
            }
    free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_is_exact),
        cmocka_unit_test(head_has_many_tiles),
        cmocka_unit_test(head_survives_odd_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
