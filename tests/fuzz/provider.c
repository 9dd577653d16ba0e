/* tests/fuzz/provider.c - what a packer asks of a model that was found sound. */
#include "engine/model/pack.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

/* First, middle and last row, each in a buffer of its size. */
static void rows_use(const struct pack_provider *p, enum tensor_role role, int layer, int n, int k)
{
    const int rows[] = {0, n / 2, n - 1};
    const int64_t row_bytes = dtype_row_bytes(p->dtype(p->impl, role, layer), k);
    CHECK(row_bytes > 0);
    uint8_t *row = malloc((size_t)row_bytes);
    CHECK(row);
    for (int i = 0; i < 3; i++)
        if (p->rows(p->impl, role, layer, rows[i], 1, row) == OK)
            fuzz_touch(row, row_bytes);
    free(row);
}

static void vector_use(const struct pack_provider *p, enum tensor_role role, int layer, int n)
{
    float *numbers = malloc((size_t)n * sizeof *numbers);
    CHECK(numbers);
    if (p->vector(p->impl, role, layer, n, numbers) == OK)
        fuzz_touch(numbers, n * (int64_t)sizeof *numbers);
    free(numbers);
}

void fuzz_provider_use(const struct pack_provider *p)
{
    CHECK(!shape_check(&p->shape));
    for (int role = 0; role < N_ROLES; role++) {
        int n, k, layer = pack_copies(p, (enum tensor_role)role) - 1;
        while (layer >= 0 && !pack_has(p, (enum tensor_role)role, layer))
            layer--;
        if (layer < 0)
            continue;
        role_dims(&p->shape, (enum tensor_role)role, layer, &n, &k);
        CHECK(n > 0 && k > 0);
        if (role_kind((enum tensor_role)role) == ROLE_IS_VECTOR)
            vector_use(p, (enum tensor_role)role, layer, n);
        else
            rows_use(p, (enum tensor_role)role, layer, n, k);
    }
}
