/* engine/line/stage.h - what the engine does at each event of the walk (policy/walk.h): fetch,
 * compute (embedding and head are layers too), retire. */
#ifndef ENGINE_LINE_STAGE_H
#define ENGINE_LINE_STAGE_H

#include "engine/line/engine.h"

enum err stage_fetch_weights(struct engine *e, struct step s); // extent -> frame
enum err stage_fetch_kv(struct engine *e, struct step s);
enum err stage_fetch_hidden(struct engine *e, struct step s);
enum err stage_compute(struct engine *e,
                       struct step s); // waits for tickets, queues one layer of one batch
/* layer_work's `bring`; ctx: the engine. */
enum err stage_bring_experts(void *ctx, int layer, const struct route *route);
/* Waits until the step is done, writes KV and hidden states to their homes, and releases frames;
 * after the last slice, hands tokens to the job. */
enum err stage_retire(struct engine *e, struct step s);

#endif
