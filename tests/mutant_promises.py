"""The faults of mutants.py in what is promised to users: memory, what survives, what status and merge tell. See mutant_list.py."""
from mutant_fault import fault

CGROUP, MACHINE, CODEC, URING = "offload/cgroup.c:", "offload/machine.c:", "offload/codec.c:", "offload/ring_uring.c:"
MERGE, STATUS, OUT = "engine/cli/commands_merge.c:", "engine/job/job_status.c:", "engine/job/job_out.c:"

# ---- memory that is there

fault("page cache counts as memory in use", CGROUP + "stat_sum", "return sum;", "return 0;", "machine_test")
fault("active page cache counts as memory in use", CGROUP + "stat_sum", "|| strcmp(key, b) == 0", "", "machine_test")
fault("the last group's limit counts, not the lowest", CGROUP + "memory_visit",
      "if (free_bytes >= limits->memory_free_bytes)", "if (free_bytes < 0)", "machine_test")
fault("memory.high is no limit", CGROUP + "memory_visit",
      'min_i64(number_read(root, group, "memory.max", INT64_MAX), soft)', 'number_read(root, group, "memory.max", INT64_MAX)',
      "machine_test")
fault("a group over its limit has free memory", CGROUP + "memory_visit",
      "max_i64(limit - max_i64(max_i64(usage, 0) - cache, 0), 0)", "limit - max_i64(max_i64(usage, 0) - cache, 0)", "machine_test")
fault("only the process's own group is looked at", CGROUP + "hierarchy_walk", "i < GROUPS_MAX", "i < 1", "machine_test")
fault("a container's group is looked for below its mount", CGROUP + "group_directory",
      'rest = is_inside ? rest + n : "";', "rest = is_inside ? rest : \"\";", "machine_test")
fault("a CPU quota is that of the last group", CGROUP + "cpu_visit", "limits->cpus == 0 || cpus < limits->cpus", "1", "machine_test")
fault("a group's free memory is not looked at", MACHINE + "machine_memory_read",
      "min_i64(available, info->cgroup.memory_free_bytes)", "available", "machine_test")
fault("memory without page cache is all that is free", MACHINE + "machine_memory_read", '"MemAvailable"', '"MemFree"', "machine_test")
fault("all of free memory is a budget", MACHINE + "machine_room", "max_i64(info->ram_free_bytes - margin, 0)", "info->ram_free_bytes",
      "machine_test")

# ---- memory that a plan counts

fault("an array is one line of the cache short", "engine/line/carve.c",
      "c->end[arena] - before;", "c->end[arena] - before - CARVE_ALIGN;", "engine_test")
fault("frames of weights are counted without one", "engine/line/home.c:place_weights",
      "ARENA_DEVICE, n, p->weight_frame_bytes);", "ARENA_DEVICE, n - 1, p->weight_frame_bytes);", "engine_test")
fault("layers that stay in RAM cost nothing", "engine/line/home.c:place_resident",
      "ARENA_PINNED, 1, n_bytes);", "ARENA_PINNED, 1, 0);", "plan_test")
fault("the hint is 1 MiB short", "policy/plan.c:is_over", "(long long)ceil_div(n_bytes, 1048576)", "(long long)(n_bytes / 1048576)",
      "budget_test.py --only small_model")
fault("RAM is not held against its budget", "policy/plan.c:plan_check",
      'is_over(bytes->ram, budget->ram, "RAM", "ram", why, why_cap)', "0", "plan_test")
fault("disk is not held against its budget", "policy/plan.c:plan_check",
      'is_over(bytes->disk, budget->disk, "disk", "disk", why, why_cap)', "0", "plan_test")
fault("KV on disk takes no disk", "engine/line/home.c:home_place_stays",
      "CARVE_BLOCKS(c, kv, ARENA_DISK, 1, kv[TIER_NVME]);", "CARVE_BLOCKS(c, kv, ARENA_DISK, 1, 0);", "plan_test")
fault("copies of weights take no disk", "engine/line/home.c:place_copies", "c->set->weights->layer_bytes[layer], RING_STRIPE_BYTES",
      "4096, RING_STRIPE_BYTES", "placement_test.py --only experts")
fault("scratch is not reserved", "offload/scratch.c:scratch_reserve",
      "int e = posix_fallocate(s->fds[i], 0, each);", "int e = ftruncate(s->fds[i], each) == 0 ? 0 : errno;",
      "nth_test.py --only calls")
fault("scratch keeps its name", "offload/scratch.c:file_open", "    unlink(name);\n", "", "nth_test.py --only disk")
fault("the last stripes have no room", "offload/scratch.c:scratch_reserve", "ceil_div(ceil_div(n_bytes, RING_STRIPE_BYTES), s->n)",
      "ceil_div(n_bytes, RING_STRIPE_BYTES) / s->n", "scratch_test")
fault("a folder with a comma is a list", "offload/scratch.c:next_folder", "is_folder(*at) ? NULL : strchr(*at, ',')",
      "strchr(*at, ',')", "scratch_test")
fault("folders of one drive have its room twice", "offload/scratch.c:scratch_room", "free_bytes[i] / of_device * n",
      "free_bytes[i] * n", "scratch_test")

# ---- several drives

fault("a transfer goes on behind its stripe", "offload/ring.c:stripe_find", "    *n = min_i64(*n, RING_STRIPE_BYTES - in);\n", "", "ring_test")
fault("stripes of a file lie apart", "offload/ring.c:stripe_find", "stripe / f->n_stripes * RING_STRIPE_BYTES + in",
      "stripe * RING_STRIPE_BYTES + in", "ring_test")
fault("a copied layer is read from the pack", "engine/line/home_weights.c:home_weights_copy", "        w->place = HOME_SCRATCH;\n", "", "engine_test")
fault("experts of a copy are read at their place in the pack", "engine/line/home_experts.c:add_piece", ".offset = w->at + at,",
      ".offset = l->offset + at,", "placement_test.py --only experts")
fault("a copy begins anywhere in a stripe", "engine/line/home.c:place_copies", "layer_bytes[layer], RING_STRIPE_BYTES",
      "layer_bytes[layer], BLOCK_BYTES", "engine_test")

# ---- prompts that no budget holds

CAP = "prompt_cap_test.py"
fault("a prompt as long as the cap is refused", "engine/job/job.c:job_row_check",
      "r->n_prompt > c->prompt_cap", "r->n_prompt >= c->prompt_cap", CAP)
fault("the cap is a quarter of what fits", "engine/api/run_plan.c:search_cap", "job_work_within(r->job, fits, &r->work);",
      "job_work_within(r->job, fits / 4, &r->work);", CAP + " --only longest_rows")
fault("the cap is not written", "engine/job/job_manifest.c", "    if (job->cap_fixed) {\n        char check[16];",
      "    if (0) {\n        char check[16];", CAP + " --only resumed")
fault("a run that resumes plans its own cap", "engine/job/job_files.c:keep_cap",
      "    job->config.prompt_cap = end->prompt_cap;\n    job->cap_fixed = 1;", "", CAP + " --only resumed")
fault("errors that are retried keep their cap", "engine/job/job_files.c:keep_cap", "|| job->config.retry_errors", "",
      CAP + " --only resumed")

# ---- io_uring

fault("io_uring: the first buffer holds all", URING + "chunk_find", "return i;", "return 0;", "ring_test")
fault("io_uring: a wake is not armed again", URING + "completions_take", "    if (!u->wake_armed)\n        wake_arm(u);\n", "",
      "ring_test")
fault("io_uring: a file's number for its slot", URING + "uring_start", "u->files_fixed ? op->file_slot : op->fd", "op->fd", "ring_test")
fault("io_uring: writes are reads", URING + "uring_start", "if (chunk >= 0 && op->write)", "if (0)", "ring_test")
fault("io_uring: a completion is counted twice", URING + "completions_take", "io_uring_cq_advance(&u->ring, n_seen);",
      "io_uring_cq_advance(&u->ring, n_seen > 1 ? n_seen - 1 : n_seen);", "ring_test")
fault("io_uring: without locked memory there is no ring", URING + "buffers_register", "else if (e == -ENOMEM) {",
      "else if (e == -ENOMEM) {\n        return fail(ERR_FIT, \"io: locked memory\");", "ring_limits_test")

# ---- the codec

fault("codec: units that gain nothing are packed", CODEC + "choose_units", "if (gain <= 0)", "if (0)", "codec_test")
fault("codec: a map with bits behind its end is taken", CODEC + "codec_decompress",
      "        (n_units % 8 && in[packed_at - 1] >> n_units % 8))", "        0)", "codec_test")
fault("codec: what a frame holds is not compared", CODEC + "codec_decompress", "if (got != (size_t)(n_packed * CODEC_UNIT))",
      "if (ZSTD_isError(got))", "codec_test")
fault("codec: a piece may have any size", CODEC + "codec_decompress", "!= stored_bytes)", "> stored_bytes)", "codec_test")
fault("codec: a piece may grow by its codes", CODEC + "codec_compress", "    if (stored > n_bytes - BLOCK_BYTES)\n        return 0;\n", "",
      "codec_test")
fault("codec: what is behind the end is as it was", CODEC + "codec_compress",
      "memset(plain, 0, (size_t)(out + stored - plain));", "", "codec_test")

# ---- what survives

fault("ulimit -t kills", "engine/cli/main.c:catch_signals", "{SIGXCPU, SIGINT", "{SIGINT", "trouble_test.py --only signals")
fault("timeout(1)'s second signal kills", "engine/cli/main.c:on_signal", "now_ns - first_ns > SAME_NS", "1",
      "crash_test.py --only signals")
fault("SIGTERM kills", "engine/cli/main.c:catch_signals", "SIGINT, SIGTERM, SIGHUP", "SIGINT, SIGHUP", "trouble_test.py --only signals")
fault("Ctrl-C does not stop a packing", "engine/api/opened.c:pack_progress_show", "    if (*p->interrupted)\n", "    if (0)\n",
      "trouble_test.py --only packing")
fault("a killed plan leaves its pack", "engine/api/opened.c:open_cached", "    if (pack_passes(c))\n        unlink(o->pack_path);", "    if (0)\n        ;",
      "command_test.py --only first_plan")
fault("a listing counts as a use", "engine/cli/commands_cache.c:look", "    utimensat(AT_FDCWD, path, used, AT_SYMLINK_NOFOLLOW);", "    (void)used;",
      "cache_test.py --only oldest_first")
fault("probe ignores a stray word", "engine/api/config.c", '{"probe", CMD_PROBE, 0,', '{"probe", CMD_PROBE, 1,', "config_test")
fault("a reader of stderr that left kills", "engine/cli/main.c:catch_signals", "signal(SIGPIPE, SIG_IGN);", "",
      "trouble_test.py --only signals")
fault("hwloc's end is ours", "engine/cli/main.c:on_crash", "if (machine_in_library)", "if (0)", "command_test.py --only no_memory")
fault("OUT has its name before its bytes are durable", OUT + "new_file", "fsync(m->fd) != 0", "0", "nth_test.py --only calls")
fault("lines behind the last commit stay in OUT", OUT + "rename_partial", "ftruncate(m->job->partial_fd, m->job->partial_bytes) != 0 ||", "",
      "job_out_test", "job_resume_test", "kill_test.py --only every_point")
fault("lines that have changed are counted as lost and kept", OUT + "give_up", "TRY(job_row_again(job, k));", "", "job_out_test",
      "status_test.py --only partial_goes_bad")
fault("OUT.partial is another file by now", OUT + "out_complete", "same_file(job->partial_fd, job->paths.partial)", "1",
      "status_test.py --only partial_is_replaced")

# ---- status

SEEN = "status_test.py --only running_and_stopped"
fault("status: rows under way are done", STATUS + "count", "row->state == ROW_GOOD;", "row->state == ROW_GOOD || row->state == ROW_BEGUN;", SEEN)
fault("status: failed rows are good", STATUS + "tell", "e->failed ? ROW_BAD : ROW_GOOD", "ROW_GOOD", SEEN)
fault("status: tokens of rows under way are output", STATUS + "count",
      "*(row->state == ROW_BEGUN ? &s->live_tokens : &s->output_tokens) += row->tokens;", "s->output_tokens += row->tokens;", SEEN)
fault("status: tokens of a row count once for each commit of it", STATUS + "tell",
      "(struct told_row){e->failed ? ROW_BAD : ROW_GOOD, e->tokens, t->part,",
      "(struct told_row){e->failed ? ROW_BAD : ROW_GOOD, e->tokens + row->tokens, t->part,", SEEN)
fault("status: a job without a process runs", STATUS + "read_journal", "s->pid > 0 ? JOB_RUNNING", "look.pid > 0 ? JOB_RUNNING", SEEN)
fault("status: a job that is complete has rows left", STATUS + "job_status_read", "s->rows - s->ok - s->failed", "s->rows - s->ok", SEEN)

# ---- merge

PARTS = "merge_test.py --only shards"
fault("merge: rows go by shard, not by line", MERGE + "write_rows", "&m->parts[k % m->n]", "&m->parts[k * m->n / m->rows]", PARTS)
fault("merge: parts that have changed are taken", MERGE + "write_rows",
      "m->parts[i].crc != (uint32_t)number_of(m->parts[i].root, \"out_crc32c\")", "0", PARTS)
fault("merge: parts of other jobs are taken", MERGE + "check_parts", "TRY(same_job(&m->parts[0], &m->parts[i]));", "", PARTS)
fault("merge: a part that is not complete is taken", MERGE + "part_open",
      'if (!json_is_true(json_object_get(p->root, "complete")))', "if (0)", PARTS)
fault("merge: OUT that is there is replaced", MERGE + "check_out", "if (c->overwrite || (", "if (1 || (", PARTS)
fault("merge: the errors are those of the first part", MERGE + "sum_errors", "i < m->n", "i < 1", PARTS)
fault("merge: tokens are those of the first part", MERGE + "set_sum", "i < m->n", "i < 1", PARTS)

# ---- plans that change

fault("replan: a plan is kept whatever a control group takes away", "engine/api/replan.c:is_short",
      "    w->budget = budget;\n    return 1;", "    return 0;", "replan_test.py --only limit_lowered")

# ---- where it runs

fault("the locale of the environment rules", "engine/cli/main.c", "    catch_signals();\n",
      "    extern char *setlocale(int, const char *);\n    setlocale(6, \"\");\n    catch_signals();\n",
      "environs_test.py --only locales")
fault("io_uring that is refused ends a run", "offload/ring.c:backend_open", "config->kind == RING_URING", "1", "environs_test.py --only no_uring")
