"""Faults of jobs that many workers share (engine/job/claims.c, job_shared.c), as mutant_list.py has the others."""
from mutant_fault import fault

CLAIMS, PARTS, TEST = "engine/job/claims.c", "engine/job/job_shared.c", "workdir_test.py --only "
fault("--work-dir: a chunk is claimed twice", CLAIMS, "*made = link(from, to) == 0;", "*made = link(from, to) == 0 || errno == EEXIST;", TEST + "shares")
fault("--work-dir: a handle that went stale ends the job", CLAIMS, "if (errno != ESTALE)", "if (1)", TEST + "faults")
fault("--work-dir: a worker that stands still is waited for", CLAIMS, "(double)(now - p->seen_ns) * 1e-9 > c->beat_s * CLAIMS_BEATS_LOST;", "0;", TEST + "stopped")
fault("--work-dir: who left is waited for", CLAIMS, "p->gone = p->state == WORKER_LEFT ||", "p->gone =", TEST + "late")
fault("--work-dir: a worker does not say that it leaves", CLAIMS, "            c->state = WORKER_LEFT;\n", "            ;\n", TEST + "late")
fault("--work-dir: the folder is left", CLAIMS, "    TRY(list_dir(c, CLAIMS_DIR, remove_claim));\n", "", TEST + "kills")
fault("--work-dir: rows that others have done are done again", PARTS, "            files_row(job, e, p->part);\n", "            ;\n", TEST + "shares")
fault("--work-dir: tokens of the dead are lost", PARTS, "e->n > 0 && e->offset <= have ? files_tokens(job, e) : OK", "0 ? files_tokens(job, e) : OK", TEST + "late")
fault("--work-dir: lines of the dead are not read again", PARTS, "        if (check && done && row->part > 0 &&", "        if (0 && check && done && row->part > 0 &&", TEST + "faults")
fault("--work-dir: another job joins", PARTS, "    TRY(manifest_at(job, path, &end));\n", "    end.found = 0;\n", TEST + "refusals")
fault("--work-dir: each worker has its own limit of prompts", PARTS, "    job->cap_fixed = cap >= 0;\n    job->config.prompt_cap = max_i64(cap, 0);\n    TRY(own_files", "    TRY(own_files", TEST + "shares")
fault("f32: the instruction set is part of the job", "engine/api/run_setup.c", "same ? \"\" : \"isa=%s\"", "\"isa=%s\"", TEST + "hardware")
fault("--shard auto: an array begins at 0", "engine/api/rows.c", "launchers[k].first && !given ? getenv(launchers[k].first) : NULL", "NULL", TEST + "shards")
fault("merge --missing: an incomplete shard is there", "engine/cli/commands_merge.c", "if (is_complete(c->args[i], &shard, &n) && n == n_shards", "if ((is_complete(c->args[i], &shard, &n) || 1) && n == n_shards", TEST + "shards")
fault("--work-dir: a claim of a job that has ended is left", CLAIMS, "    return ino == c->peers[0].ino ? remove_claim(c, name, ino) : OK;\n", "    (void)c, (void)name, (void)ino;\n    return OK;\n", TEST + "ended")
fault("--work-dir: the folder is removed before a worker has joined", CLAIMS, "i < OPEN_TRIES && c->fd < 0", "i < 1", TEST + "ended")
fault("--work-dir: the folder of claims is removed before the first", CLAIMS, "            (void)mkdir(claims, 0777);\n", "            ;\n", TEST + "ended")
fault("--work-dir: a job that another worker ends is an error", "engine/api/rows.c", "!ended && ended_meanwhile(r->config, err);", "!ended && 0;", TEST + "ended")
fault("--work-dir: a job that another worker ends while this one waits is an error", "engine/api/rows.c", "            err = wait_for_work(r, start_ns);\n", "            TRY(wait_for_work(r, start_ns));\n", TEST + "ended")
