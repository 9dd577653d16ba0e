/* engine/api/advice.h - what a run says of its flags before it starts: those without effect, caps
 * above what there is, and what int8 would give. Each is one line on stderr, said once.
 *
 * Owns: these sentences. Refuses: changing any choice. */
#ifndef ENGINE_API_ADVICE_H
#define ENGINE_API_ADVICE_H

#include "engine/api/run.h"

/* Warns of KV flags under `full`, --mem-device without a device, caps above the machine.
 * r->session->info is read. */
enum err advise_flags(const struct run *r);
/* The rates of bf16 and int8 matmuls at hand: 0 where the sentence is not worth it, else the bytes
 * written to buf. Apart for tests. */
int advice_int8_text(double bf16, double int8, int int8_weights, char *buf, int cap);
/* r->decision.plan is timed: where a job is bound by compute in bf16 and long enough to care,
 * measures matmuls in both (0.2 s) and says what they would give and cost. int8 over bf16; 0: not
 * measured.
 */
double advise_int8(const struct run *r);

#endif
