/* policy/cut.c - see cut.h: the best cut of the first layers over the first stages, from those over
 * one stage less. */
#include "policy/cut.h"

#include <math.h>

#include "kernels/base/num.h"

double cut_layers(const double *cost, int stages, int layers, int *first)
{
    /* least[n]: cost of the costliest stage if the stages so far have the first n layers; from[s]:
     * where stage s then begins. */
    double least[SHAPE_LAYERS_MAX + 1];
    int16_t from[CUT_STAGES_MAX][SHAPE_LAYERS_MAX + 1];
    for (int n = 0; n <= layers; n++)
        least[n] = n == 0 ? 0 : INFINITY;
    for (int s = 0; s < stages; s++)
        for (int n = layers; n >= 0; n--) { // downwards: least[] below n is still of stage s - 1
            double own = 0, best = INFINITY;
            for (int at = n - 1; at >= s && own < best; at--) {
                own += cost[s * layers + at];
                double most = max_d(own, least[at]);
                if (most <= best) {
                    best = most;
                    from[s][n] = (int16_t)at;
                }
            }
            least[n] = best;
        }
    first[stages] = layers;
    for (int s = stages - 1; s >= 0; s--)
        first[s] = from[s][first[s + 1]];
    return least[layers];
}
