/* kernels/base/limits.h - constants, tiers and lanes that several folders share. */
#ifndef KERNELS_BASE_LIMITS_H
#define KERNELS_BASE_LIMITS_H

#define PAGE_SLOTS  32        // tokens per KV page
#define BLOCK_BYTES 4096      // direct I/O alignment: of frames, pages and file extents
#define PIECE_BYTES (1 << 20) // unit of transfer; weights have one CRC per piece
#define IO_DEPTH    8         // the most pieces in flight per mover

/* Where bytes are stored. */
enum tier_kind { TIER_DEVICE, TIER_RAM, TIER_NVME, N_TIERS };

/* Resources that take time. LANE_STALL counts time in which no lane works for the step. */
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
