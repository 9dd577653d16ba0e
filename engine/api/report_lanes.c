/* engine/api/report_lanes.c - see report.h: the plan's figures for each lane.
 *
 * Owns: the lanes that a run shows, their predicted seconds and bytes, probed rates. Note: with a
 * device, lane cpu is the time to queue work; lane gpu has no rate, as bytes and FLOPs share it. */
#include "engine/api/report.h"

#include <string.h>

double report_lane_predicted(const struct run *r, enum lane lane)
{
    const struct plan_time *t = &r->decision.time;
    const double s[N_LANES] = {
        [LANE_NVME_READ] = t->read_s, [LANE_NVME_WRITE] = t->write_s, [LANE_CPU] = t->compute_s,
        [LANE_H2D] = t->h2d_s,        [LANE_D2H] = t->d2h_s,          [LANE_GPU] = t->gpu_s};
    return s[lane];
}

double report_lane_predicted_bytes(const struct run *r, enum lane lane)
{
    return lane <= LANE_D2H ? r->decision.time.bytes[lane] : 0; // the other lanes move no bytes
}

double report_lane_share(const struct run *r, enum lane lane)
{
    return r->decision.time.pass_s > 0 ? report_lane_predicted(r, lane) / r->decision.time.pass_s
                                       : 0;
}

int report_lane_limits(const struct run *r, enum lane lane)
{
    return strcmp(lane_name(lane), r->decision.time.bound) == 0;
}

double report_lane_probed(const struct run *r, enum lane lane)
{
    const struct machine *m = &r->machine;
    const double rates[N_LANES] = {[LANE_NVME_READ] = m->nvme_read.value,
                                   [LANE_NVME_WRITE] = m->nvme_write.value,
                                   [LANE_H2D] = m->h2d.value,
                                   [LANE_D2H] = m->d2h.value};
    return rates[lane];
}

int report_lane_shown(const struct run *r, enum lane lane)
{
    const int always = lane == LANE_NVME_READ || lane == LANE_NVME_WRITE || lane == LANE_CPU;
    const int of_device = lane == LANE_H2D || lane == LANE_D2H || lane == LANE_GPU;
    return always || (of_device && r->decision.plan.device) ||
           r->engine.trace.totals[lane].events > 0;
}

const char *report_bound_now(const struct run *r, const struct report_sample *from,
                             const struct report_sample *to)
{
    static const enum lane moving[] = {LANE_NVME_READ, LANE_NVME_WRITE, LANE_H2D, LANE_D2H};
    enum lane bound = LANE_GPU;
    double most = (double)(to->gpu_ns - from->gpu_ns) * 1e-9;
    if (!r->decision.plan.device) {
        if (to->stall_ns - from->stall_ns <= to->cpu_ns - from->cpu_ns)
            return lane_name(LANE_CPU);
        return lane_name(to->bytes[LANE_NVME_WRITE] - from->bytes[LANE_NVME_WRITE] >
                                 to->bytes[LANE_NVME_READ] - from->bytes[LANE_NVME_READ]
                             ? LANE_NVME_WRITE
                             : LANE_NVME_READ);
    }
    for (int i = 0; i < 4; i++) {
        double rate = report_lane_probed(r, moving[i]);
        double s =
            (double)(to->bytes[moving[i]] - from->bytes[moving[i]]) / (rate > 0 ? rate : 1e9);
        if (s > most) {
            most = s;
            bound = moving[i];
        }
    }
    return lane_name((double)(to->cpu_ns - from->cpu_ns) * 1e-9 > most ? LANE_CPU : bound);
}
