/* bench/peers/llamacpp_job.cpp - our job on llama.cpp: token ids, greedy, end-of-text ignored.
 *
 * Owns: batches of rows over llama.h and their clock. Refuses: text, templates and sampling beyond
 * the argmax. Note: all rows generate the same number of tokens, so the rows of a static batch end
 * together and waste nothing. Built by run_llamacpp.py.
 *
 * llamacpp_job MODEL JOB OUT NAME=VALUE...
 *   JOB: "ROWS NEW", then per row "N id ... id". OUT: per row NEW ids. Settings: batch, threads,
 * ubatch; kv=unified|split (one stream per row), kv_type=f16|q8_0, flash=auto|on|off; repack=1 lets
 * the library keep a second, rearranged copy of weights, 0 computes from the mapped file; share=1
 * computes what all prompts of a batch begin with once; warm=1 runs a request of other tokens
 * before the clock; gpu_layers, kv_on_gpu=1: KV of all layers on the GPU, 0: KV of those layers.
 * Prints "name value" lines. */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "llama.h"

namespace
{

using row_ids = std::vector<llama_token>;
using settings = std::map<std::string, std::string>;

struct job {
    int n_new = 0;
    std::vector<row_ids> prompts;
};

struct clocks {
    double prefill_s = 0, decode_s = 0;
};

double now_s()
{
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void stop(const std::string &why)
{
    std::fprintf(stderr, "llamacpp_job: %s\n", why.c_str());
    std::exit(1);
}

job job_read(const char *path)
{
    std::ifstream in(path);
    job j;
    size_t n_rows = 0;
    if (!(in >> n_rows >> j.n_new) || n_rows < 1 || j.n_new < 1)
        stop(std::string("cannot read ") + path);
    for (size_t r = 0; r < n_rows; r++) {
        size_t n = 0;
        if (!(in >> n) || n < 1 || n > 1 << 20)
            stop("bad row");
        row_ids ids(n);
        for (llama_token &id : ids)
            if (!(in >> id))
                stop("row is cut");
        j.prompts.push_back(std::move(ids));
    }
    return j;
}

settings settings_read(int argc, char **argv)
{
    settings set{{"batch", "64"},    {"threads", "2"},    {"ubatch", "512"}, {"kv", "split"},
                 {"kv_type", "f16"}, {"flash", "auto"},   {"repack", "1"},   {"share", "0"},
                 {"warm", "0"},      {"gpu_layers", "0"}, {"kv_on_gpu", "1"}};
    for (int i = 4; i < argc; i++) {
        std::string word = argv[i];
        size_t equals = std::min(word.find('='), word.size());
        if (set.count(word.substr(0, equals)) == 0 || equals == word.size())
            stop("unknown setting " + word);
        set[word.substr(0, equals)] = word.substr(equals + 1);
    }
    return set;
}

int number(const settings &set, const char *name)
{
    return std::atoi(set.at(name).c_str());
}

/* Ties go to the lowest id. Two loops, because the first one vectorises. */
llama_token argmax(const float *logits, int n)
{
    float best = logits[0];
    for (int i = 1; i < n; i++)
        best = std::max(best, logits[i]);
    return (llama_token)(std::find(logits, logits + n, best) - logits);
}

void batch_add(llama_batch &b, llama_token id, int pos, int seq, bool wants_logits)
{
    int i = b.n_tokens++;
    b.token[i] = id;
    b.pos[i] = pos;
    b.n_seq_id[i] = 1;
    b.seq_id[i][0] = seq;
    b.logits[i] = wants_logits;
}

/* How many tokens rows [from, to) have in common; at least one of each row is left. */
size_t common_prefix(const job &j, size_t from, size_t to)
{
    size_t n = j.prompts[from].size() - 1;
    for (size_t r = from + 1; r < to; r++) {
        const row_ids &a = j.prompts[from], &b = j.prompts[r];
        n = std::min(n, b.size() - 1);
        n = (size_t)(std::mismatch(a.begin(), a.begin() + (long)n, b.begin()).first - a.begin());
    }
    return n;
}

/* Computes the common prefix as sequence 0, and gives all other rows a copy of its KV. */
void prefix_share(llama_context *ctx, llama_batch &b, const job &j, size_t from, size_t to,
                  size_t n)
{
    for (size_t p = 0; p < n; p++)
        batch_add(b, j.prompts[from][p], (int)p, 0, false);
    b.logits[n - 1] = true; // the library wants an output
    if (llama_decode(ctx, b) != 0)
        stop("llama_decode failed");
    for (size_t r = from + 1; r < to; r++)
        llama_memory_seq_cp(llama_get_memory(ctx), 0, (int)(r - from), -1, -1);
    b.n_tokens = 0;
}

/* Runs rows [from, to) from their prompts to their last token. */
void batch_run(llama_context *ctx, const job &j, size_t from, size_t to, bool shares,
               std::vector<row_ids> &out, clocks &c)
{
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
    size_t n_tokens = 0;
    for (size_t r = from; r < to; r++)
        n_tokens += j.prompts[r].size();
    llama_batch b = llama_batch_init((int)n_tokens, 0, 1);
    std::vector<int> last(to - from); // index in the batch of a row's logits
    double start_s = now_s();
    llama_memory_clear(llama_get_memory(ctx), false);
    b.n_tokens = 0;
    size_t shared = shares && to > from + 1 ? common_prefix(j, from, to) : 0;
    if (shared > 0)
        prefix_share(ctx, b, j, from, to, shared);
    for (size_t r = from; r < to; r++) {
        const row_ids &ids = j.prompts[r];
        for (size_t p = shared; p < ids.size(); p++)
            batch_add(b, ids[p], (int)p, (int)(r - from), p + 1 == ids.size());
        last[r - from] = b.n_tokens - 1;
    }
    for (int step = 0; step < j.n_new; step++) {
        if (llama_decode(ctx, b) != 0)
            stop("llama_decode failed");
        for (size_t r = from; r < to; r++)
            out[r].push_back(argmax(llama_get_logits_ith(ctx, last[r - from]), n_vocab));
        double s = now_s();
        (step == 0 ? c.prefill_s : c.decode_s) += s - start_s;
        start_s = s;
        b.n_tokens = 0;
        for (size_t r = from; r < to; r++) {
            last[r - from] = b.n_tokens;
            batch_add(b, out[r].back(), (int)j.prompts[r].size() + step, (int)(r - from), true);
        }
    }
    llama_batch_free(b);
}

llama_context *context_open(llama_model *model, const job &j, size_t n_rows, const settings &set)
{
    size_t longest = 0, n_tokens = 0;
    for (size_t at = 0; at < j.prompts.size(); at += n_rows) {
        size_t n = 0;
        for (size_t r = at; r < std::min(at + n_rows, j.prompts.size()); r++) {
            longest = std::max(longest, j.prompts[r].size() + (size_t)j.n_new);
            n += j.prompts[r].size();
        }
        n_tokens = std::max(n_tokens, n);
    }
    const std::string &flash = set.at("flash");
    llama_context_params p = llama_context_default_params();
    p.kv_unified = set.at("kv") == "unified";
    p.n_ctx = (uint32_t)(n_rows * (p.kv_unified ? longest : (longest + 255) / 256 * 256));
    p.n_batch = (uint32_t)std::max(n_tokens, n_rows);
    p.n_ubatch = std::min((uint32_t)number(set, "ubatch"), p.n_batch);
    p.n_seq_max = (uint32_t)n_rows;
    p.n_outputs_max = (uint32_t)n_rows; // else the library reserves logits for whole prompts
    p.n_threads = p.n_threads_batch = number(set, "threads");
    p.flash_attn_type = flash == "on"    ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                        : flash == "off" ? LLAMA_FLASH_ATTN_TYPE_DISABLED
                                         : LLAMA_FLASH_ATTN_TYPE_AUTO;
    p.type_k = p.type_v = set.at("kv_type") == "q8_0" ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
    p.no_perf = true;
    p.offload_kqv = number(set, "kv_on_gpu") != 0;
    return llama_init_from_model(model, p);
}

long peak_rss_kib()
{
    std::ifstream in("/proc/self/status");
    for (std::string word; in >> word;)
        if (word == "VmHWM:") {
            long kib = 0;
            in >> kib;
            return kib;
        }
    return 0;
}

/* Runs other tokens, as long as the first prompt, then one decode, so that the job has no first-use
 * costs. */
void warm_up(llama_context *ctx, const job &j)
{
    job one;
    one.n_new = 2;
    one.prompts.emplace_back(j.prompts[0].rbegin(), j.prompts[0].rend());
    for (llama_token &id : one.prompts[0])
        id ^= 1;
    std::vector<row_ids> out(1);
    clocks c;
    batch_run(ctx, one, 0, 1, false, out, c);
}

void log_errors(enum ggml_log_level level, const char *text, void *)
{
    if (level == GGML_LOG_LEVEL_ERROR || level == GGML_LOG_LEVEL_WARN)
        std::fputs(text, stderr);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 4)
        stop("MODEL JOB OUT NAME=VALUE...");
    const settings set = settings_read(argc, argv);
    llama_log_set(log_errors, nullptr);
    job j = job_read(argv[2]);
    size_t n_rows = std::min((size_t)number(set, "batch"), j.prompts.size());
    if (n_rows < 1)
        stop("batch is out of range");
    double start_s = now_s();
    llama_backend_init();
    llama_model_params p = llama_model_default_params();
    p.load_mode = LLAMA_LOAD_MODE_MMAP;
    p.use_extra_bufts = number(set, "repack") != 0;
    p.n_gpu_layers = number(set, "gpu_layers");
    llama_model *model = llama_model_load_from_file(argv[1], p);
    llama_context *ctx = model ? context_open(model, j, n_rows, set) : nullptr;
    if (!ctx)
        stop(std::string("cannot load ") + argv[1]);
    std::printf("load_s %.6f\n", now_s() - start_s);
    std::vector<row_ids> out(j.prompts.size());
    clocks c;
    if (number(set, "warm") != 0)
        warm_up(ctx, j);
    start_s = now_s();
    for (size_t at = 0; at < out.size(); at += n_rows)
        batch_run(ctx, j, at, std::min(at + n_rows, out.size()), number(set, "share") != 0, out, c);
    std::printf("seconds %.6f\nprefill_s %.6f\ndecode_s %.6f\npeak_rss_kib %ld\nsystem %s\n",
                now_s() - start_s, c.prefill_s, c.decode_s, peak_rss_kib(),
                llama_print_system_info());
    std::ofstream file(argv[3]);
    for (const row_ids &ids : out) {
        for (llama_token id : ids)
            file << id << ' ';
        file << '\n';
    }
    file.close();
    if (!file)
        stop(std::string("cannot write ") + argv[3]);
    llama_free(ctx);
    llama_model_free(model);
    llama_backend_free();
    return 0;
}
