/* engine/line/frames.c - see frames.h. */
#include "engine/line/frames.h"

#include <stdio.h>
#include <string.h>

enum err frames_wait(struct mover *mover, struct trace *trace, struct ticket *t, int64_t step)
{
    if (mover_done(mover, t))
        return mover_wait(mover, t);
    int64_t start_ns = clock_ns();
    enum err e = mover_wait(mover, t);
    trace_add(trace, LANE_STALL,
              (struct trace_event){.name = t->name,
                                   .start_ns = start_ns,
                                   .end_ns = clock_ns(),
                                   .step = step,
                                   .bytes = -1,
                                   .layer = t->layer,
                                   .batch = t->batch});
    return e;
}

struct frame *frames_of(const struct frames *f, int64_t step)
{
    for (int i = 0; i < f->n; i++)
        if (f->frames[i].step == step)
            return &f->frames[i];
    return NULL;
}

enum err frames_take(struct frames *f, int64_t step, struct frame **out)
{
    struct frame *oldest = NULL;
    for (int i = 0; i < f->n; i++) {
        struct frame *one = &f->frames[i];
        if (one->step < 0 && (!oldest || one->write.seq < oldest->write.seq))
            oldest = one;
    }
    CHECK(oldest); // plan_derive counted the frames of every step in flight
    TRY(frames_wait(f->mover, f->trace, &oldest->write, step));
    oldest->step = step;
    oldest->n_write = oldest->bad = 0;
    *out = oldest;
    return OK;
}

/* The ticket that a transfer of this extent must wait for; NULL when the extent's last write is
 * done. Note: a done ticket must not be named. Its frame may serve this very transfer, which would
 * then wait for itself. */
static struct ticket *last_ticket(const struct frames *f, const struct last_write *last)
{
    struct ticket *t = last->ticket;
    return t && t->seq == last->seq && !mover_done(f->mover, t) ? t : NULL;
}

static struct ticket ticket_of(const struct frames *f, const struct frame *frame, int n,
                               struct frame_use use)
{
    return (struct ticket){.place = use.place,
                           .on_device = f->on_device,
                           .segments = frame->segments,
                           .n_segments = n,
                           .due = use.step,
                           .after = last_ticket(f, use.last),
                           .name = f->name,
                           .layer = use.layer,
                           .batch = use.batch};
}

void frames_fetch(struct frames *f, struct frame *frame, int n, struct frame_use use)
{
    frame->read = ticket_of(f, frame, n, use);
    mover_submit(f->mover, &frame->read);
}

enum err frames_ready(struct frames *f, struct frame *frame)
{
    enum err e = frames_wait(f->mover, f->trace, &frame->read, frame->step);
    if (e != ERR_CORRUPT && e != ERR_IO)
        return e;
    frame->bad = 1;
    char text[256];
    snprintf(text, sizeof text, "%s", err_text());
    TRY(mover_failed(f->mover)); // a failed write ends the run; a failed read does not
    fail(e, "%s", text);         // sets err_text() again for the caller
    return OK;
}

void frames_store(struct frames *f, struct frame *frame, int n, struct frame_use use)
{
    if (n > 0) {
        frame->write = ticket_of(f, frame, n, use);
        frame->write.write = 1;
        mover_submit(f->mover, &frame->write);
        *use.last = (struct last_write){&frame->write, frame->write.seq};
    }
    frame->step = -1;
}

void frames_drain(struct frames *f)
{
    for (int i = 0; i < f->n; i++) {
        mover_wait(f->mover, &f->frames[i].read);
        mover_wait(f->mover, &f->frames[i].write);
    }
}
