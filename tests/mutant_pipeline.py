"""Faults of a model that is cut over ranks (engine/line/pipe.c, engine/api/pipeline.c), as mutant_list.py has the others."""
from mutant_fault import fault

PIPE, PIPELINE, STAGE, TEST = "engine/line/pipe.c", "engine/api/pipeline.c", "engine/line/stage.c", "pipeline_test.py --only "
fault("--pipeline: a lost row is lost on its own rank only", PIPE, "if (t->rows[r].request && t->rows[r].lost)", "if (0)", TEST + "faults")
fault("--pipeline: candidates of the head do not travel", PIPE, "(t->requests[i].want & HEAD_FILTER) != 0;", "0;", TEST + "ranks")
fault("--pipeline: a batch is sampled before the others know its tokens", STAGE, "        TRY(pipe_sample(&e->pipe, s.pass));\n", "", TEST + "ranks")
fault("--pipeline: a buffer is filled again before it has left", PIPE, "    TRY(peers_wait(p->peers, &p->leaving[k], p->stop));\n    uint8_t *message", "    p->leaving[k].busy = 0;\n    uint8_t *message", TEST + "ranks", TEST + "device")
fault("--pipeline: tokens of an earlier run stay on rank 0", "engine/job/job_follow.c", "    for (int64_t i = 0; i < job->n_resumed; i++) {", "    for (int64_t i = 0; i < 0; i++) {", TEST + "lost")
fault("--pipeline: a complete job is run again", "engine/job/job_follow.c", "!job->complete && job->rows[k].state", "job->rows[k].state", TEST + "ranks")
fault("--pipeline: each rank has batches of its own", PIPELINE, "    if (ranks->batch > 0) {\n        wish->batch", "    if (0) {\n        wish->batch", TEST + "placements", TEST + "ranks")
fault("--pipeline: windows stay with the first layers", "engine/model/model.c", "    memmove(s->layer_window, s->layer_window + from, (size_t)n * sizeof *s->layer_window);\n", "", TEST + "policies")
fault("--pipeline: xIELU's numbers stay with the first layers", "engine/model/model.c", "    memmove(s->layer_alpha, s->layer_alpha + from, (size_t)n * sizeof *s->layer_alpha);\n", "", TEST + "policies")
fault("--pipeline: budgets of layers stay with the first layers", PIPELINE, "r->kinds[i].layer + from,", "r->kinds[i].layer,", TEST + "policies")
fault("--pipeline: a rank with other flags takes part", PIPELINE, "    if (*a == *b)\n        return OK;\n", "    return OK;\n", TEST + "refusals")
fault("a pass of a pipeline takes all groups", "policy/walk.h", "order->groups > 1 ? (int)(pass % order->groups) * order->batches : 0;", "0;", "walk_test")
fault("a checksum leaves vector registers in use", "kernels/base/base.c", "    upper_halves_off();\n    return", "    if (n_bytes > 0)\n        upper_halves_off();\n    return", "isa_test")
