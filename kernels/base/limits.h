/* kernels/base/limits.h - sizes and places that more than one room goes by. */
#ifndef KERNELS_BASE_LIMITS_H
#define KERNELS_BASE_LIMITS_H

#define PAGE_SLOTS  32   // kept tokens of a KV page
#define BLOCK_BYTES 4096 // direct I/O starts and ends on multiples: frames, pages, extents of files
#define PIECE_BYTES (1 << 20) // what transfers are cut into; a piece of weights has one CRC
#define IO_DEPTH    8         // pieces that the mover keeps in flight

/* Where bytes can be. */
enum tier_kind { TIER_DEVICE, TIER_RAM, TIER_NVME, N_TIERS };

/* Resources that take time. A stall is time in which none of them works for the step. */
enum lane {
    LANE_NVME_READ,
    LANE_NVME_WRITE,
    LANE_H2D,
    LANE_D2H,
    LANE_GPU,
    LANE_CPU,
    N_WORK_LANES,
    LANE_STALL = N_WORK_LANES,
    N_LANES
};

#endif
