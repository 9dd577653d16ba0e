/* policy/cost.c - plan_cost: seconds of each lane over a pass, and of the whole job (see plan.h).
 *
 * Owns: the formulas, one set for a run in RAM, one for a run on a device with memory of its own.
 * Refuses: to look inside a pass: a lane is a sum over it, and the slowest one is the pass. */
#include "policy/int64.h"
#include "policy/plan.h"
#include "policy/rates.h"

#include <math.h>
#include <string.h>

/* Seconds of a pass to decode what streams, on the one thread that does; beside the reads. */
static double codec_seconds(const struct plan *plan, const struct plan_costs *costs,
                            double streamed)
{
    return plan->codec == PLAN_CODEC_NONE ? 0 : rate(streamed, costs->codec_rate);
}

/* Prompt tokens that enter in a pass which admits some, and how many such passes there are. */
static double admitted(const struct plan *plan, const struct work *work, double *passes)
{
    double all = (double)work->prompt_tokens;
    if (work->scores) // known tokens come in at the same gate as prompts
        all += (double)work->output_tokens;
    double each = max_d(plan->prefill_tokens, (double)work->prompt_max);
    *passes = max_d(all / max_d(each, 1), all > 0 ? 1 : 0);
    return *passes > 0 ? all / *passes : 0;
}

static double count_passes(const struct plan *plan, const struct work *work, double prompt_passes)
{
    double rows = (double)plan->batch * plan->batches;
    if (rows > (double)work->n_rows)
        rows = (double)work->n_rows;
    if (work->scores)
        return max_d(max_d((double)work->n_rows / max_d(rows, 1), prompt_passes), 1);
    /* A row is live for about `outputs` passes; the last to enter leave that much later. */
    double outputs = work->n_rows ? (double)work->output_tokens / (double)work->n_rows : 0;
    double by_rows = (double)work->output_tokens / max_d(rows, 1) + 1;
    return max_d(max_d(by_rows, prompt_passes + outputs), 1);
}

/* A pass of which `live` tokens decode and `prompts` enter. */
struct load {
    double live, prompts;
};

/* ---- in RAM ---- */

/* Matmuls of a pass: every batch goes over all weights, its tokens through the layers and its
 * positions through the head. */
static double matmul_seconds(const struct plan *plan, const struct shape *shape,
                             const struct model_rates *rates, double tokens, double positions)
{
    int slices = plan->layers - 1 - plan->decoder;
    double head_tiles = ceil((double)shape->vocab / HEAD_TILE) / max_d(slices, 1), s = 0;
    for (int layer = 1; layer < plan->layers; layer++) {
        enum weight_state state = plan_layer_decoded(plan, layer) ? WEIGHTS_TILES : WEIGHTS_STORED;
        s += layer <= plan->decoder
                 ? model_layer_s(rates, state, tokens / plan->batches)
                 : head_tiles * model_head_s(rates, state, positions / plan->batches);
    }
    return s * plan->batches;
}

/* What a pass in RAM costs beside matmuls: bytes that it moves and decodes, and its steps. */
static void cost_of_sweep(const struct plan *plan, const struct weights_info *w,
                          const struct work *work, const struct shape *shape,
                          const struct plan_costs *costs, const struct machine *machine,
                          double tokens, struct plan_time *t)
{
    double streamed = 0;
    for (int layer = 1; layer < plan->layers; layer++)
        streamed += plan_layer_resident(plan, layer) ? 0 : (double)w->layer_bytes[layer];
    double rows = (double)plan->batch * plan->batches;
    double live = (double)work->output_tokens / t->passes; // a token each
    double slots = work->scores ? 0 : live * (double)work->slots_mean * 0.75;
    double slot_bytes = (double)costs->kv_page_bytes / 32;
    double kv_read = slots * slot_bytes * plan->decoder;
    double kv_share =
        (double)plan_kv_count(plan, TIER_NVME) / ((double)plan->decoder * plan->batches);
    double hidden = rows * shape->dim * 4.0 * plan->layers *
                    (double)plan_hidden_count(plan, TIER_NVME) / plan->batches;
    double codec_s = codec_seconds(plan, costs, streamed);
    double share =
        plan->codec != PLAN_CODEC_NONE && costs->codec_share > 0 ? costs->codec_share : 1;
    t->read_s = max_d(
        rate(streamed * share + kv_read * kv_share + hidden, machine->nvme_read.value), codec_s);
    t->write_s =
        rate(hidden + tokens * slot_bytes * plan->decoder * kv_share, machine->nvme_write.value);
    struct order order = plan_order(plan);
    t->compute_s = rate(kv_read, machine->ram_read.value) +
                   (double)order_pass_steps(&order) * machine->step_s.value +
                   codec_s / max_d(machine->threads, 1); // it takes a core's time
}

/* Two kinds of passes: those that admit prompts, until all are in (`share` of them), and those that
 * only decode. Of a prompt the last position reaches the head, of scored rows every one. */
static void cost_in_ram(const struct plan *plan, const struct weights_info *w,
                        const struct work *work, const struct shape *shape,
                        const struct plan_costs *costs, const struct machine *machine,
                        struct load load, double share, struct plan_time *t)
{
    cost_of_sweep(plan, w, work, shape, costs, machine, load.live + load.prompts * share, t);
    double rows_in = load.prompts * rate((double)work->n_rows, (double)work->prompt_tokens);
    double positions = work->scores ? load.prompts : load.live + rows_in;
    double decode_s =
        t->compute_s + matmul_seconds(plan, shape, &costs->rates, load.live, load.live);
    double prompt_s = t->compute_s + matmul_seconds(plan, shape, &costs->rates,
                                                    load.live + load.prompts, positions);
    double io_s = t->read_s + t->write_s;
    t->compute_s = decode_s + share * (prompt_s - decode_s);
    if (plan->ahead_weights > 0)
        t->pass_s = share * max_d(prompt_s, io_s) + (1 - share) * max_d(decode_s, io_s);
    else
        t->pass_s = t->compute_s + io_s;
    t->bound =
        t->compute_s >= io_s ? "cpu" : (t->read_s >= t->write_s ? "nvme-read" : "nvme-write");
}

/* ---- on a device with memory of its own ---- */

/* Bytes of weights that a pass touches. */
struct weight_bytes {
    double nvme;    // come from NVMe
    double link;    // and over the link, these and those from RAM
    double tiles;   // in the form that matmuls read
    double decoded; // read and written to bring into it what is not kept so
};

static struct weight_bytes weight_bytes_of(const struct plan *plan, const struct weights_info *w)
{
    struct weight_bytes b = {0};
    for (int layer = 1; layer < plan->layers; layer++) {
        double stored = (double)w->layer_bytes[layer], tiles = (double)w->tile_bytes[layer];
        enum tier_kind home = plan_layer_home(plan, layer);
        b.nvme += home == TIER_NVME ? stored : 0;
        b.link += home != TIER_DEVICE ? stored : 0;
        b.tiles += tiles > 0 ? tiles : stored;
        b.decoded += tiles > 0 && !plan_layer_decoded(plan, layer) ? stored + tiles : 0;
    }
    return b;
}

/* Slots that a live row attends over, in the mean of its life. */
static double slots_attended(const struct work *work)
{
    double rows = max_d((double)work->n_rows, 1);
    double tokens = (double)work->prompt_tokens + (double)work->output_tokens / 2;
    return min_d(tokens / rows, (double)work->slots_mean);
}

/* Of the tokens that enter, how many leave KV behind. */
static double share_kept(const struct work *work)
{
    double tokens = (double)work->prompt_tokens + (double)work->output_tokens;
    return min_d((double)work->slots_mean * (double)work->n_rows / max_d(tokens, 1), 1);
}

/* What rows that attend on the CPU take: bytes each way over the link, and seconds of the CPU, at
 * the slower of reading KV and, in prompts, multiplying. */
struct apart {
    double to_host, to_device, cpu_s;
};

static struct apart attend_apart(const struct plan *plan, const struct work *work,
                                 const struct shape *shape, const struct machine *machine,
                                 struct load load, double attended)
{
    double heads = (double)shape->n_heads * shape->head_dim;
    double kv = (double)shape->n_kv_heads * shape->head_dim;
    double tokens = (load.live + load.prompts) * plan->decoder;
    double prompt = (double)work->prompt_tokens / max_d((double)work->n_rows, 1);
    double flops = 4 * heads * prompt / 2 * load.prompts * plan->decoder; // q k and p v, causal
    if (!plan->attn_cpu)
        return (struct apart){0};
    return (struct apart){.to_host = tokens * (heads + 2 * kv) * 4,
                          .to_device = tokens * heads * 4,
                          .cpu_s = rate(attended, machine->ram_read.value) +
                                   rate(flops, machine->matmul_flops.value)};
}

/* The lanes of one pass, seconds; pass_s of them, too.
 *   nvme-read   layers of NVMe (as they are stored), KV and hidden states of NVMe
 *   h2d         layers that are not in device memory, KV and hidden states that are not
 *   d2h         KV of new tokens and hidden states that leave; nvme-write: those of NVMe
 *   gpu         matmuls, at the slower of reading weights for each tile of tokens and multiplying;
 *               KV attended over, and weights that are decoded behind their copy
 *   cpu         queuing: step_s for each tile in each layer
 * Under --attn cpu KV stays on the host, and q, k, v and what attention leaves cross the link, on
 * the stream of the ops, so that they are time of lane gpu, too; the cpu reads the KV. */
static void device_pass(const struct plan *plan, const struct weights_info *w,
                        const struct work *work, const struct shape *shape,
                        const struct plan_costs *costs, const struct machine *machine,
                        struct load load, struct plan_time *t)
{
    struct weight_bytes weights = weight_bytes_of(plan, w);
    double tokens = load.live + load.prompts, codec_s = codec_seconds(plan, costs, weights.nvme);
    double stored =
        plan->codec != PLAN_CODEC_NONE && costs->codec_share > 0 ? costs->codec_share : 1;
    double slot = (double)costs->kv_page_bytes / PLAN_PAGE_SLOTS * plan->decoder;
    double attended = work->scores ? 0 : load.live * slots_attended(work) * slot;
    double slots_written = load.live * costs->kv_pages_written * PLAN_PAGE_SLOTS;
    double written = (slots_written + load.prompts * share_kept(work)) * slot;
    double extents = (double)plan->decoder * plan->batches;
    double kv_nvme = (double)plan_kv_count(plan, TIER_NVME) / extents;
    double kv_link = plan->attn_cpu ? 0 : 1 - (double)plan_kv_count(plan, TIER_DEVICE) / extents;
    struct apart apart = attend_apart(plan, work, shape, machine, load, attended);
    double hidden = tokens * shape->dim * 4.0 * plan->decoder;
    double hidden_nvme = hidden * (double)plan_hidden_count(plan, TIER_NVME) / plan->batches;
    double hidden_link =
        hidden * (1 - (double)plan_hidden_count(plan, TIER_DEVICE) / plan->batches);
    double tiles = max_d(plan->batches, tokens / plan->tile_tokens);
    t->read_s = max_d(codec_s, rate(weights.nvme * stored + attended * kv_nvme + hidden_nvme,
                                    machine->nvme_read.value));
    t->write_s = rate(written * kv_nvme + hidden_nvme, machine->nvme_write.value);
    t->h2d_s =
        rate(weights.link + attended * kv_link + hidden_link + apart.to_device, machine->h2d.value);
    t->d2h_s = rate(written * kv_link + hidden_link + apart.to_host, machine->d2h.value);
    t->gpu_s = max_d(rate(tiles * weights.tiles, machine->device_read.value),
                     rate(tokens * (double)w->flops_per_token, machine->device_flops.value)) +
               rate((plan->attn_cpu ? 0 : attended) + weights.decoded, machine->device_read.value) +
               rate(apart.to_host, machine->d2h.value) + rate(apart.to_device, machine->h2d.value);
    t->compute_s = plan->layers * tiles * machine->step_s.value + apart.cpu_s;
    double io_s = t->read_s + t->write_s;
    double link_s = max_d(t->h2d_s, t->d2h_s), ops_s = max_d(t->gpu_s, t->compute_s);
    if (plan->attn_cpu && plan->batches == 1) // one waits for the other
        ops_s = t->gpu_s + t->compute_s;
    t->pass_s = plan->ahead_weights > 0 ? max_d(io_s, max_d(link_s, ops_s))
                                        : io_s + t->h2d_s + t->d2h_s + t->gpu_s + t->compute_s;
}

static const char *slowest(const struct plan_time *t)
{
    const struct {
        const char *name;
        double s;
    } lanes[] = {{t->read_s >= t->write_s ? "nvme-read" : "nvme-write", t->read_s + t->write_s},
                 {"h2d", t->h2d_s},
                 {"d2h", t->d2h_s},
                 {"gpu", t->gpu_s},
                 {"cpu", t->compute_s}};
    int most = 0;
    for (int i = 1; i < (int)(sizeof lanes / sizeof *lanes); i++)
        if (lanes[i].s > lanes[most].s)
            most = i;
    return lanes[most].name;
}

static double mixed(double share, double a, double b)
{
    return share * a + (1 - share) * b;
}

static void cost_on_device(const struct plan *plan, const struct weights_info *w,
                           const struct work *work, const struct shape *shape,
                           const struct plan_costs *costs, const struct machine *machine,
                           struct load load, double share, struct plan_time *t)
{
    struct plan_time prompt = {0}, decode = {0};
    device_pass(plan, w, work, shape, costs, machine, load, &prompt);
    device_pass(plan, w, work, shape, costs, machine, (struct load){.live = load.live}, &decode);
    t->read_s = mixed(share, prompt.read_s, decode.read_s);
    t->write_s = mixed(share, prompt.write_s, decode.write_s);
    t->compute_s = mixed(share, prompt.compute_s, decode.compute_s);
    t->h2d_s = mixed(share, prompt.h2d_s, decode.h2d_s);
    t->d2h_s = mixed(share, prompt.d2h_s, decode.d2h_s);
    t->gpu_s = mixed(share, prompt.gpu_s, decode.gpu_s);
    t->pass_s = mixed(share, prompt.pass_s, decode.pass_s);
    t->bound = slowest(t);
}

void plan_cost(const struct plan *plan, const struct weights_info *w, const struct work *work,
               const struct shape *shape, const struct plan_costs *costs,
               const struct machine *machine, struct plan_time *t)
{
    memset(t, 0, sizeof *t);
    double prompt_passes, prompts = admitted(plan, work, &prompt_passes);
    t->passes = count_passes(plan, work, prompt_passes);
    double share = min_d(prompt_passes / t->passes, 1); // of passes that admit prompts
    double live = work->scores ? 0 : (double)work->output_tokens / t->passes;
    struct load load = {live, prompts};
    (plan->device ? cost_on_device : cost_in_ram)(plan, w, work, shape, costs, machine, load, share,
                                                  t);
    t->job_s = t->passes * t->pass_s;
}
