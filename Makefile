# sluice: `make demo` shows it at work, `make check` tests it all; `make` builds ./sluice; `make help` lists the rest.
# V=1 prints commands; BUILD=, OPT= and SAN= make other builds; CUDA=1 builds the CUDA part, CUDA=0 leaves it out.
ifeq ($(origin CC),default)
CC      := gcc
endif
V       ?= 0
BUILD   ?= build
OPT     ?= -O2 -g
SAN     ?=
NVCC    ?= $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc))
Q       := $(if $(filter 0,$(V)),@,)
say      = $(if $(filter 0,$(V)),@printf '  %-5s %s\n' $(1) $(2),@:)

, := ,
WARN    := -Wall -Wextra -Wshadow -Wvla -Wmissing-prototypes -Wstrict-prototypes -Werror
CFLAGS  := -std=c17 -D_GNU_SOURCE -I. $(OPT) $(WARN) $(SAN) -ffp-contract=off -fno-math-errno -fPIC -fno-semantic-interposition -pthread -MMD -MP
LDLIBS  := -ljansson -lpcre2-8 -lutf8proc -luring -lhwloc -lzstd -lisal -ldl -lm -pthread
# Without -j, a make uses every core, and one job more: one may wait for the disk or the network. Several goals of which
# one removes or measures are made one after the other.
ifeq ($(MAKELEVEL)$(if $(filter clean bench-%,$(MAKECMDGOALS)),$(filter-out 1,$(words $(MAKECMDGOALS)))),0)
JOBS    := $(shell echo " $$MAKEFLAGS" | grep -q -e " -j" || echo -j$$(($$(nproc) + 1)))
MAKEFLAGS += $(JOBS)
endif

# The CUDA part: for the cards of this machine where there is a driver; with CUDA=1, which these goals imply, for every
# card from Turing to Hopper, with PTX of the last for what comes after. CUDA_ARCHS="75 90" builds less.
ifneq ($(filter cuda gpu-kit,$(MAKECMDGOALS)),)
CUDA    ?= 1
endif
DRIVER  := $(firstword $(wildcard /proc/driver/nvidia/version /dev/nvidiactl /dev/dxg))
CUDA    ?= $(and $(DRIVER),$(NVCC),card)
ALL_ARCHS := 75 80 86 89 90
ifeq ($(CUDA),card)
CARDS   := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -nu)
CUDA_ARCHS ?= $(or $(filter-out 5% 6% 70 72,$(filter $(patsubst sm_%,%,$(shell $(NVCC) --list-gpu-code)),$(CARDS))),$(ALL_ARCHS))
endif
CUDA_ARCHS ?= $(ALL_ARCHS)
NVLAST  := $(lastword $(CUDA_ARCHS))
NVARCH  := $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a)$(,)code=sm_$(a)) -gencode arch=compute_$(NVLAST)$(,)code=compute_$(NVLAST)
# The library is a tenth of the size, and loads in the same time: compressed (from nvcc 12.8 on harder), without lines.
NVSMALL  = $(or $(shell $(NVCC) --help 2>/dev/null | grep -q compress-mode && echo --compress-mode=size),-Xfatbin=-compress-all)
NVFLAGS := -std=c++17 -O3 -fmad=false -Werror all-warnings -I. -Xcompiler -fPIC,-fvisibility=hidden,-pthread -MMD -MP
# Locals hold no zeros by chance, where g++ can see to that (12 and above).
SIMT_INIT = $(shell $(CXX) -ftrivial-auto-var-init=pattern -E -x c++ /dev/null >/dev/null 2>&1 && \
                    echo -ftrivial-auto-var-init=pattern)
# Pinned RAM is cut into chunks of 256 KiB there, so that many copies cross from one into another.
SIMT_FLAGS = -x c++ -std=c++17 -O1 -g1 -I. -Itests/simt/cudart -include tests/simt/device.h -ffp-contract=off -fno-math-errno -fno-exceptions \
             -DCUDA_PIN_CHUNK=0x40000ll \
             -fno-strict-aliasing $(SIMT_INIT) -fsanitize=thread,undefined --param tsan-instrument-func-entry-exit=0 \
             -Wall -Wextra -Wno-unknown-pragmas -Werror $(filter -w,$(WARN)) -MMD -MP

# Files that take the compiler long come first, so that no core waits for the last of them.
SRC     := $(wildcard kernels/cpu/attend*.c kernels/cpu/[!a]*.c kernels/base/*.c kernels/*.c kernels/ref/*.c policy/*.c offload/*.c engine/*/*.c engine/model/*/*.c bench/*.c)
SRC     := $(filter-out engine/api/example.c offload/peers_mpi.c,$(SRC))
OBJ     := $(SRC:%.c=$(BUILD)/%.o)
LIB_OBJ := $(filter-out $(BUILD)/engine/cli/main.o,$(OBJ))
CU      := $(if $(filter-out 0,$(CUDA)),$(wildcard kernels/cuda/*.cu))
# The same files for the host, under the shim of tests/simt and its CUDA runtime: no CUDA needed.
SIMT_CU := $(wildcard kernels/cuda/*.cu tests/simt/*.cu)
SIMT_OBJ := $(SIMT_CU:%.cu=$(BUILD)/%.simt.o) $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/simt/*.c tests/simt/cudart/*.c))
CU_OBJ  := $(CU:%.cu=$(BUILD)/%.cu.o)
TEST_SRC := $(wildcard tests/*_test.c)
TESTS   := $(TEST_SRC:tests/%.c=$(BUILD)/tests/%)
PRELOADS := tests/tools/nth.c
SIM_SO  := $(BUILD)/tests/sim_device.so
TOOLS   := $(patsubst %.c,$(BUILD)/%,$(filter-out $(PRELOADS),$(wildcard tests/tools/*.c)))
SHIMS   := $(PRELOADS:%.c=$(BUILD)/%.so)
FORMAT  := $(wildcard $(addsuffix /*.[ch],policy kernels kernels/base kernels/ref kernels/cpu offload engine/* engine/model/* bench bench/gpu tests tests/fuzz \
                                    tests/simt tests/simt/cudart tests/tools tests/gpu)) \
           $(wildcard kernels/cuda/*.cu* tests/simt/*.cu)
VENV    := build/venv
GOLDENV := build/venv-goldens
# The binary stands at the top of the tree; other builds keep theirs to themselves.
BIN     := $(if $(filter build,$(BUILD)),sluice,$(BUILD)/sluice)
CUDA_SO := $(if $(CU),$(BIN)-cuda.so)
LIB_SO  := $(BUILD)/libsluice.so.0

## all: builds ./sluice, build/libsluice.so.0, and sluice-cuda.so for the card where an NVIDIA driver is
all: $(CUDA_SO) $(BIN) $(if $(SAN),,$(LIB_SO))
	@$(if $(CUDA),:,$(if $(NVCC),echo "CUDA part not built: no NVIDIA driver here (make cuda builds it)",:))

## cuda: builds sluice-cuda.so for every card (nvcc, minutes)
cuda: all

# Devices in libraries of their own call the program's functions.
$(BIN): $(OBJ)
	$(call say,LINK,$@)
	$(Q)$(CC) $(SAN) -rdynamic -o $@ $^ $(LDLIBS)

$(BUILD)/%_avx512.o: CFLAGS += -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mavx512vnni -mfma -mf16c
# For CPUs without products of bf16; int8 runs on those among them that have products of bytes.
$(BUILD)/%_avx512f.o: CFLAGS += -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c
$(BUILD)/kernels/cpu/matmul_int8_avx512.o: CFLAGS += -mno-avx512bf16
# Tiles besides; what is not tiles is AVX-512.
$(BUILD)/%_amx.o: CFLAGS += -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mavx512vnni -mfma -mf16c -mamx-tile -mamx-bf16 -mamx-int8
$(BUILD)/%_avx2.o: CFLAGS += -mavx2 -mfma -mf16c
$(BUILD)/%_avxvnni.o: CFLAGS += -mavx2 -mfma -mf16c -mavxvnni
# Sanitized, the portable set and the plain loops may call fmaf() as one instruction where the CPU has it: the same
# numbers, and the sweeps of `make check` take a third of the time.
ifneq ($(SAN),)
HAS_FMA := $(if $(shell grep -m1 -w fma /proc/cpuinfo),-mfma)
$(BUILD)/%_portable.o: CFLAGS += $(HAS_FMA)
$(BUILD)/kernels/ref/%.o: CFLAGS += $(HAS_FMA)
# -O2 unrolls the tiles before ASan looks, so that their sums are registers and not a checked array: tests that
# multiply take half the time, for 20 s of compiling.
$(BUILD)/kernels/cpu/matmul_avx512.o $(BUILD)/kernels/cpu/matmul_avx512f.o: CFLAGS += -O2
endif

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS) -c -o $@ $<

# What `sluice version` calls itself: the commit of this folder, or the one that git archive wrote into engine/api/COMMIT.
COMMIT   = $(or $(shell if [ -e .git ]; then git describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null || cat $(BUILD)/commit; \
                        else grep -v Format engine/api/COMMIT 2>/dev/null | cut -c1-12; fi),unknown)
$(BUILD)/commit: FORCE
	@mkdir -p $(@D)
	@echo "$(COMMIT)" | cmp -s - $@ || echo "$(COMMIT)" >$@
$(BUILD)/engine/api/version.o: CFLAGS += -DSLUICE_COMMIT='"$(shell cat $(BUILD)/commit)"'
$(BUILD)/engine/api/version.o: $(BUILD)/commit

# Other architectures are other objects.
$(BUILD)/cuda-archs: FORCE
	$(Q)$(if $(NVCC),,echo "CUDA=1 needs nvcc (NVCC=PATH names it)" >&2; exit 1)
	@mkdir -p $(@D)
	@echo "$(CUDA_ARCHS)" | cmp -s - $@ || echo "$(CUDA_ARCHS)" >$@

$(BUILD)/%.cu.o: %.cu $(BUILD)/cuda-archs
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) $(NVSMALL) $(NVFLAGS) $(NVARCH) -c -o $@ $<

$(BIN)-cuda.so: $(CU_OBJ)
	$(call say,LINK,$@)
	$(Q)$(NVCC) -shared -Xcompiler -static-libstdc++,-static-libgcc -Xlinker --exclude-libs=ALL -o $@ $^

## mpi: builds sluice-mpi.so for --pipeline, against the MPI whose mpicc is in PATH (MPICC=...)
MPICC ?= mpicc
mpi: $(BIN)-mpi.so
$(BIN)-mpi.so: offload/peers_mpi.c offload/peers.h
	$(call say,MPICC,$@)
	$(Q)OMPI_CC="$(lastword $(CC))" $(MPICC) $(filter-out $(SAN) -MMD -MP,$(CFLAGS)) -fPIC -fvisibility=hidden -shared -o $@ $<

$(BUILD)/%.simt.o: %.cu
	@mkdir -p $(@D)
	$(call say,SIMT,$<)
	$(Q)$(CXX) $(SIMT_FLAGS) -c -o $@ $<

$(BUILD)/libsimt.a: $(SIMT_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

# The names that programs and devices call are in the map; all others are hidden.
$(LIB_SO): $(BUILD)/engine/api/sluice.o $(BUILD)/libsluice.a engine/api/sluice.map
	$(call say,LINK,$@)
	$(Q)$(CC) -shared -Wl,-soname,libsluice.so.0 -Wl,--version-script=engine/api/sluice.map -Wl,-z,defs -o $@ \
	    $(filter %.o %.a,$^) $(LDLIBS)
	$(Q)ln -sf libsluice.so.0 $(BUILD)/libsluice.so

$(BUILD)/libsluice.a: $(LIB_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/tests/%_test: $(BUILD)/tests/%_test.o $(BUILD)/libsluice.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(SAN) -o $@ $(filter %.o,$^) $(filter-out $(BUILD)/libsluice.a,$(filter %.a,$^)) $(BUILD)/libsluice.a \
	    $(LDLIBS) -lcmocka

$(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/simt_*_test.c)): $(BUILD)/libsimt.a
# The tests of AMX kernels again, where tile instructions are C (tests/tiles.h).
TILES := $(patsubst %,$(BUILD)/tests/tiles/%.o,kernels/ops $(patsubst %.c,%,$(filter kernels/cpu/%_amx.c,$(SRC))))
$(TILES): $(BUILD)/tests/tiles/%.o: %.c tests/tiles.h
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS) -include tests/tiles.h -c -o $@ $<
$(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/tiles_*_test.c)): $(TILES)
# The tests of kernels again, for a device that is there; it takes from the program what it needs of kernels/.
GPU_TESTS := $(patsubst %,$(BUILD)/tests/gpu/%_test,rows head decode matmul attend prompt experts)
$(GPU_TESTS:=.o): $(BUILD)/tests/gpu/%.o: tests/simt_%.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS) -DTEST_ON_DEVICE -c -o $@ $<
$(GPU_TESTS): $(BUILD)/tests/gpu/shim.o $(BUILD)/tests/sim_device.o
$(GPU_TESTS) $(BUILD)/tests/device_test $(BUILD)/tests/flat_test $(BUILD)/tests/line_device_test: LDLIBS += -Wl,--export-dynamic
$(patsubst %,$(BUILD)/tests/%_test,device flat line_device probe simulate): $(BUILD)/tests/sim_device.o

# The back end that lies stands between ring.c and those that do not.
FAULT_BIN := $(BUILD)/tests/sluice-faults
FAULT_LD  := $(addprefix -Wl$(,)--wrap=,ring_uring_open ring_pool_open home_open)
$(FAULT_BIN): $(BUILD)/tests/ring_fault.o $(OBJ)
	$(call say,LINK,$@)
	$(Q)$(CC) $(SAN) -rdynamic $(FAULT_LD) -o $@ $^ $(LDLIBS)
FAULT_TESTS := $(patsubst %,$(BUILD)/tests/%_test,ring ring_limits mover engine)
$(FAULT_TESTS): $(BUILD)/tests/ring_fault.o
$(FAULT_TESTS): LDLIBS += $(FAULT_LD)

$(BUILD)/tests/tools/pack_source: LDLIBS += -lcmocka

# ---- fuzzing: the harnesses of tests/fuzz; files lie in memory, behind calls that the linker wraps
FUZZERS  := codec config encode gguf journal json machine manifest model_cfg pack plan quantized rows safetensors template \
            token_blob tokenizer
FUZZ_SRC := $(filter-out tests/fuzz/fuzz_main.c,$(wildcard tests/fuzz/*.c))
FUZZ_OBJ := $(FUZZ_SRC:%.c=$(BUILD)/%.o)
FUZZ_LD  := $(addprefix -Wl$(,)--wrap=,open stat lstat fstat close flock fdatasync ftruncate lseek pread pwrite fopen)

$(BUILD)/tests/fuzz_test: $(FUZZ_OBJ)
$(BUILD)/tests/fuzz_test: LDLIBS += $(FUZZ_LD)

# The kernels, which parse nothing and ask for what clang lacks, are built as ever. Small limits make
# lines longer than a window, and templates that run too long, common.
ifeq ($(BUILD),build/fuzz)
FUZZ_CC  ?= clang
FUZZ_SAN := -fsanitize=address,undefined -fno-sanitize-recover
FUZZ_CFLAGS := $(FUZZ_SAN) -fsanitize=fuzzer-no-link -DJSONL_WINDOW_BYTES=64 -DTEMPLATE_STEPS_MAX=20000 \
               '-DTEMPLATE_RENDER_BYTES_MAX=(1 << 20)' -DREQUEST_TEXT_BYTES=65536 \
               -DJOURNAL_CHUNK_BYTES=512
FUZZ_OF  := $(patsubst %,$(BUILD)/%/%.o,policy offload engine tests)
$(FUZZ_OF): override CC = $(FUZZ_CC)
$(FUZZ_OF): CFLAGS += $(FUZZ_CFLAGS)

$(BUILD)/libfuzz.a: $(FUZZ_OBJ)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/main_%.o: tests/fuzz/fuzz_main.c
	@mkdir -p $(@D)
	$(Q)$(FUZZ_CC) $(CFLAGS) $(FUZZ_CFLAGS) -DFUZZ_TARGET=fuzz_$* -c -o $@ $<

$(BUILD)/fuzz_%: $(BUILD)/main_%.o $(BUILD)/libfuzz.a $(BUILD)/libsluice.a
	$(call say,LINK,$@)
	$(Q)$(FUZZ_CC) $(FUZZ_SAN) -fsanitize=fuzzer -o $@ $^ $(LDLIBS) $(FUZZ_LD)

fuzzers: $(addprefix $(BUILD)/fuzz_,$(FUZZERS))
endif

$(BUILD)/tests/tools/%: $(BUILD)/tests/tools/%.o $(BUILD)/libsluice.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(SAN) -o $@ $< $(BUILD)/libsluice.a $(LDLIBS)

# Preloaded into a program under test: never sanitized, and no call may be taken for a built-in.
$(BUILD)/tests/tools/%.so: tests/tools/%.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(filter-out $(SAN),$(CFLAGS)) -fPIC -fno-builtin -shared -o $@ $< -ldl

# The simulated accelerator as a program takes it:
# --device build/tests/sim_device.so:SEED[,DELAY_US[,LOSE_AT[,MEMORY_BYTES[,READS_F16]]]]
$(SIM_SO): tests/sim_device.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS) -MF $@.d -fPIC -shared -Wl,-Bsymbolic -o $@ $<

# What cards that are not here would take (bench/gpu/model.h): no part of the program.
GPU_MODEL := $(BUILD)/bench/gpu_model
GPU_OBJ   := $(patsubst %,$(BUILD)/bench/gpu/%.o,cards model step table)
$(GPU_MODEL): $(GPU_OBJ) $(BUILD)/libsluice.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(SAN) -o $@ $^ $(LDLIBS)

# The model's commands are those that a decode step queues.
$(BUILD)/tests/simt_step_test: $(filter-out %/table.o,$(GPU_OBJ))

# A device that takes the model's time and computes nothing, and the program for it (bench/clock.py).
CLOCK_SO  := $(BUILD)/bench/clock_device.so
CLOCK_BIN := $(BUILD)/bench/clock_sluice
CLOCK_WRAPS := mmap madvise pack_layer_make plan_layer_made home_weights_claim
$(CLOCK_SO): bench/gpu/clock_device.c bench/gpu/model.c bench/gpu/cards.c
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(filter-out -MMD -MP,$(CFLAGS)) -fPIC -shared -Wl,-Bsymbolic -o $@ $(filter %.c,$^)
$(CLOCK_SO): bench/gpu/model.h kernels/device.h kernels/ops.h
$(CLOCK_BIN): $(BUILD)/bench/gpu/clock_wrap.o $(OBJ) | $(CLOCK_SO)
	$(call say,LINK,$@)
	$(Q)$(CC) $(SAN) -rdynamic $(CLOCK_WRAPS:%=-Wl,--wrap=%) -o $@ $^ $(LDLIBS)

tools: $(TOOLS) $(SHIMS) $(FAULT_BIN) $(SIM_SO) $(GPU_MODEL) $(CLOCK_SO) $(CLOCK_BIN) $(if $(SAN),,$(LIB_SO) $(if $(shell command -v $(MPICC)),mpi))
# ThreadSanitizer: all but the kernels of instruction sets (they take long to build, and runs are asked
# for --isa portable) and the decoders, whose target_clones are chosen before it is up.
ifeq ($(BUILD),build/tsan)
SAN := -fsanitize=thread
$(filter-out %_avx2.o %_avxvnni.o %_avx512.o %_amx.o $(BUILD)/kernels/dtype%.o,$(OBJ)) $(TESTS:=.o) $(BUILD)/tests/sim_device.o $(BUILD)/tests/ring_fault.o $(SIM_SO): CFLAGS += $(SAN)
endif

## tests: builds the C tests and the tools of tests/
tests: $(TESTS) tools

# What published jobs would take on cards that are not here: bench/results/gpu-model.csv; modelled, nothing is run.
# SASS=FILE is the table of counts that it goes by.
SASS ?= $(wildcard bench/results/cuda-sass.csv)
bench-gpu-model: $(GPU_MODEL)
	$(Q)$(GPU_MODEL) $(if $(SASS),--sass $(SASS)) --commit $(COMMIT) >bench/results/gpu-model.csv
	$(Q)cut -d, -f1,3,5,9-22 bench/results/gpu-model.csv | grep -v '^#' | column -s, -t

# What configs/machine-*.cfg say of a card, out of the same model; then `make bench-paper` plans with it. A file
# keeps the order and the comments of its lines.
bench-gpu-machines: $(GPU_MODEL)
	$(Q)for f in $(filter-out %-laptop.cfg,$(wildcard configs/machine-*.cfg)); do \
	    c=$${f##*-}; $(GPU_MODEL) $(if $(SASS),--sass $(SASS)) --machine $${c%.cfg} | while IFS= read -r line; do \
	        sed -i "s|^$${line%% =*} = .*|$$line|" $$f; done; done

## help: lists these goals
help:
	@sed -n 's/^## //p' Makefile | LC_ALL=C sort | \
	    awk '{ n = index($$0, ": "); printf "%-12s %s\n", substr($$0, 1, n - 1), substr($$0, n + 2) }'

# What has to be installed: for the build, for `make demo`, for `make check`.
## deps: installs the libraries that the build needs (Debian, Ubuntu)
deps:
	$(Q).ci/deps.sh
demo-deps:
	$(Q).ci/deps.sh demo
	$(Q)mkdir -p build/demo && touch build/demo/begin
check-deps:
	$(Q).ci/deps.sh check
	$(Q)$(MAKE) --no-print-directory $(VENV)/ready

$(VENV)/ready: tests/requirements.txt
	$(call say,VENV,$(VENV))
	$(Q)python3 -m venv $(VENV) && $(VENV)/bin/pip install -q --disable-pip-version-check -r $<
	$(Q)touch $@

$(GOLDENV)/ready: tests/goldens/requirements.txt tests/requirements.txt
	$(call say,VENV,$(GOLDENV))
	$(Q)python3 -m venv $(GOLDENV) && $(GOLDENV)/bin/pip install -q --disable-pip-version-check -r $<
	$(Q)touch $@

## check: runs the tests that hold every promise once (about 8 minutes on 2 cores)
# ARGS="--only NAME" builds and runs some, ARGS="--list" names them (tests/check.py).
check:
	$(Q).ci/deps.sh check
	$(Q)python3 tests/check.py $(ARGS)

## check-full: runs every test (about 50 minutes on 2 cores)
check-full:
	$(Q).ci/deps.sh check
	$(Q)python3 tests/check.py --level full $(ARGS)

## check-night: runs every test with the counts of a release, sanitizers, fuzzing and faults (hours)
# The counts of a release, races, a minute of fuzzing for each parser, PTX where nvcc is, and all faults.
check-night:
	$(Q).ci/deps.sh check
	$(Q)python3 tests/check.py --level night $(ARGS)
	$(Q)$(MAKE) --no-print-directory tsan
	$(Q)$(MAKE) --no-print-directory fuzz SECONDS=60
	$(Q)$(if $(NVCC),$(MAKE) --no-print-directory check-ptx,echo "SKIP check-ptx needs nvcc")
	$(Q)$(MAKE) --no-print-directory mutants

## test: runs the tests of one file, F=path/of/file, or of every file that differs from HEAD
test:
	$(Q).ci/deps.sh check
	$(Q)python3 tests/check.py $(if $(F),--file $(F),--changed) $(ARGS)

## oracle: lists what sluice computes and prints otherwise than BASE (default: the commit where this branch left main; 8 minutes)
# ARGS="--only plan" compares one group of cases (tests/oracle.py --help).
oracle: all $(SIM_SO) $(SHIMS) $(VENV)/ready
	$(Q)$(VENV)/bin/python tests/oracle.py against $(BASE) $(ARGS)

## asan: runs the C tests under ASan and UBSan
asan:
	$(Q)python3 tests/check.py --asan $(ARGS)

## powercut: cuts the power of a disk under running jobs (root)
# 30 power cuts of an ext4 disk under running jobs (root, loop devices).
powercut: all $(SHIMS)
	$(Q)python3 tests/powercut_test.py --level night

## mutants: puts faults into copies of the source, which the tests have to meet (hours; ARGS="--only WORD")
# Can the tests see? Faults of one line in copies of the source, each to be met by a test that it names.
mutants: check-deps
	$(Q)python3 tests/mutants.py $(ARGS)

## fuzz: fuzzes each parser (clang)
# Fuzzes each parser until it has had RUNS executions in all (kept in build/fuzz/work, so that it
# goes on where it stopped). ONLY=NAME: one; SECONDS=N: at most so long for each.
RUNS ?= 10000000
fuzz:
	$(Q).ci/deps.sh fuzz
	$(Q)$(MAKE) --no-print-directory BUILD=build/fuzz fuzzers
	$(Q)python3 tests/fuzz/run.py --runs $(RUNS) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(ONLY),--only $(ONLY))

## tsan: looks for races with ThreadSanitizer
# Races: the parts that have threads, and a small streamed run. Not part of `make check`.
TSAN_TESTS := mover_test ring_test pool_test device_test line_device_test job_ahead_test api_test
tsan:
	$(Q)$(MAKE) --no-print-directory BUILD=build/tsan build/tsan/sluice build/tsan/tests/sluice-faults build/tsan/tests/sim_device.so \
	    $(TSAN_TESTS:%=build/tsan/tests/%)
	$(Q)python3 tests/tools/tsan.py $(TSAN_TESTS)

## tidy: checks layers, sizes and style of the sources, and what objects call and export
tidy: $(OBJ)
	$(Q)python3 tests/tidy.py --objects $(BUILD)

## format: formats the sources (clang-format)
format:
	$(Q)clang-format -i $(FORMAT)

## demo: builds, fetches a small model meanwhile (98 MB) and answers 8 questions
demo: demo-model all
	$(Q)tests/demo.sh ./sluice
demo-model:
	$(Q)tests/model.sh >build/demo/model
ifneq ($(filter demo,$(MAKECMDGOALS)),)
$(OBJ) $(CU_OBJ) demo-model: | demo-deps
endif

## goldens: makes the tests' expected outputs anew (PyTorch, transformers)
# The tiny models' goldens; with SMOLLM2=FILE.gguf PROMPTS=gsm8k.jsonl TEXT=wikitext.txt the big ones too.
goldens: $(GOLDENV)/ready
	$(Q)$(GOLDENV)/bin/python tests/goldens/make_families.py
	$(Q)$(GOLDENV)/bin/python tests/goldens/make.py \
	    $(if $(SMOLLM2),--smollm2 $(SMOLLM2) --prompts $(PROMPTS) --text $(TEXT))

## bench-TABLE: measures a table of bench/README.md; TABLE is ram, streamed, h2o, formats, budget, batch, ops, ...
# A table of bench/README.md, measured on this machine: idle, committed, as root where disk or memory is held
# (bench/run.py --help; ARGS= are its flags). Then into bench/README.md.
BENCHES := ram streamed h2o formats budget ops libraries quality start
$(BENCHES:%=bench-%):
	$(Q)bench/run.py $(@:bench-%=%) $(ARGS)
	$(Q)bench/tables.py --write bench/README.md $(@:bench-%=%)

# How good the planner is, likewise; each goes on where it was stopped (paper runs nothing).
PLANNED := predict choice hand paper
$(PLANNED:%=bench-%):
	$(Q)bench/$(@:bench-%=%).py $(ARGS)
	$(Q)bench/tables.py --write bench/README.md $(@:bench-%=%)

# Rows that end long before max_tokens, with and without plans that follow them; no table either.
bench-lengths:
	$(Q)bench/lengths.py $(ARGS)

# Mixtures of experts of 31 and 47 billion parameters under 4 GiB of memory; its CSV has no table in bench/README.md.
bench-experts:
	$(Q)bench/experts.py $(ARGS)

# The adapter for lm-evaluation-harness beside the harness's own hf model, on tasks made on the spot (bench/lm_eval_local.py
# --help; PYTHON names an interpreter that has lm_eval, torch and transformers).
bench-lm-eval:
	$(Q)$(or $(PYTHON),python3) bench/lm_eval_local.py $(ARGS)

# What KV policies, budgets and formats cost: needles, perplexity, ROUGE, GSM8K (bench/evaluate.py --help), no table either.
bench-evaluate:
	$(Q)bench/evaluate.py $(ARGS)

## tables: writes the tables of bench/README.md from bench/results
tables:
	$(Q)bench/tables.py --write bench/README.md
## plots: writes those tables and draws the plots
plots:
	$(Q)bench/tables.py --write bench/README.md --plots

## check-gpu: tests what the GPU here computes
# Is what a GPU computes right? In stages, resumable, into build/gpu/check.csv (tests/gpu/check_gpu.py --help; ARGS= are its
# flags). DEVICE=$PWD/build/tests/sim_device.so:1,20 tries it without one.
CHECKPOINTS := llama-mha-bf16 llama-mha-q4_1.gguf llama-mha-q8_0.gguf llama-gqa-q4_0.gguf \
               llama-rope3-q8_0.gguf llama-bias-f16 llama-k-q4_k.gguf opt-mha-bf16 opt-post-q4_0.gguf opt-untied-bf16
build/gpu/models/ready: tests/goldens/tiny.py Makefile | $(VENV)/ready
	$(call say,MODELS,$(@D))
	$(Q)rm -rf $(@D) && $(VENV)/bin/python $< $(@D) $(CHECKPOINTS) >/dev/null
	$(Q)touch $@

CHECK_GPU := $(GPU_TESTS) $(addprefix $(BUILD)/tests/,flat_test device_test line_device_test)
check-gpu: all $(CHECK_GPU) $(SIM_SO) build/gpu/models/ready
	$(Q)DEVICE=$(or $(DEVICE),cuda) python3 tests/gpu/check_gpu.py $(ARGS)

## bench-gpu: measures the GPU here
# The figures on a GPU, likewise: bench/results/gpu_*.csv (bench/gpu.py --help).
bench-gpu: all
	$(Q)DEVICE=$(or $(DEVICE),cuda) bench/gpu.py $(ARGS)

## gpu-kit: packs all that a machine with a GPU needs into one folder (nvcc)
# All that a machine with a GPU needs, in one folder (tests/gpu/kit.py says what); as root it is tried in a root of its own.
KIT := build/gpu-kit/sluice-gpu
gpu-kit: all $(CHECK_GPU) $(SIM_SO) build/gpu/models/ready
	$(Q)python3 tests/gpu/kit.py -o $(KIT) --tests $(BUILD)/tests --nvcc "$$($(NVCC) --version 2>/dev/null | grep -o 'release [0-9.]*')"
	$(Q)if [ "$$(id -u)" = 0 ] && command -v unshare dash >/dev/null; then tests/gpu/bare.sh $(KIT); else \
	    echo "not tried in a bare root: needs root, unshare and dash"; fi

## help-md: writes the tables of commands and flags into engine/README.md
help-md: $(BIN)
	$(Q)./$(BIN) help --markdown | sed -i -e '/^<!-- flags -->/,/^<!-- .flags -->/{//!d}' -e '/^<!-- flags -->/r /dev/stdin' engine/README.md

## clean: removes what was built
clean:
	$(Q)rm -rf $(BUILD) $(BIN) $(BIN)-cuda.so $(BIN)-mpi.so

## check-ptx: runs the CUDA kernels' PTX on the CPU (nvcc; minutes)
# The PTX of every architecture, interpreted in the fibers of the SIMT shim: what nvcc makes of the kernels gives the bits
# of the tests. Once per release: minutes. ARGS="--plant", ARGS="--test NAME"; CUDA_ARCHS="80" looks at one.
PTX_CU    := $(filter kernels/cuda/%,$(SIMT_CU))
PTX       := $(foreach a,$(CUDA_ARCHS),$(PTX_CU:kernels/cuda/%.cu=$(BUILD)/ptx/$(a)/%.ptx))
PTX_TESTS := $(filter-out %/simt_shim_test %/simt_ptx_test %/simt_step_test,$(filter $(BUILD)/tests/simt_%,$(TESTS)))

define PTX_RULE
$(BUILD)/ptx/$(1)/%.ptx: kernels/cuda/%.cu
	@mkdir -p $$(@D)
	$$(call say,PTX,$$@)
	$$(Q)$(NVCC) $(NVFLAGS) -lineinfo -ptx -arch=compute_$(1) -o $$@ $$<
endef
$(foreach a,$(CUDA_ARCHS),$(eval $(call PTX_RULE,$(a))))

## sass: counts the machine code of the CUDA kernels and fails at a bound (nvcc, nvdisasm)
# Registers, spills, loads in flight, instructions per mma of every kernel on every architecture, into a table; nvdisasm is in
# tests/requirements.txt. ARGS=--check writes no table.
sass:
	$(Q)$(if $(NVCC),,echo "make sass needs nvcc (NVCC=PATH names it)" >&2; exit 1)
	$(Q)$(or $(SLUICE_PYTHON),$(wildcard $(VENV)/bin/python),python3) tests/tools/sass.py \
	    $(or $(ARGS),-o bench/results/cuda-sass.csv) $(NVCC) $(NVFLAGS) -- $(CUDA_ARCHS)

check-ptx:
	$(Q)$(if $(NVCC),,echo "make check-ptx needs nvcc (NVCC=PATH names it)" >&2; exit 1)
	$(Q)$(MAKE) --no-print-directory $(PTX) $(PTX_TESTS)
	$(Q)python3 tests/tools/ptx.py $(ARGS) $(CUDA_ARCHS)

# Installing, and the archive of the sources. .ci/install.sh knows where each file goes.
PREFIX  ?= /usr/local
DESTDIR ?=
VERSION  = $(shell sed -n 's/.*SLUICE_VERSION "\(.*\)"/\1/p' engine/api/version.h)

## install: installs into PREFIX=/usr/local, under DESTDIR= for a package
install: all
	$(Q)BIN=./$(BIN) LIB_SO=$(LIB_SO) CUDA_SO=$(CUDA_SO) PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' .ci/install.sh install
## uninstall: removes what `make install` put into PREFIX
uninstall:
	$(Q)PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' .ci/install.sh uninstall

## wheel: packs the Python package, the program and libsluice into build/wheel, for any Python 3.10 or later
wheel: all
	$(Q)python3 engine/python/wheel.py build/wheel ./$(BIN) $(LIB_SO) $(CUDA_SO)

## dist: packs the committed sources into build/sluice-VERSION.tar.gz, the commit written in
dist:
	@mkdir -p build
	$(Q)git archive --prefix=sluice-$(VERSION)/ -o build/sluice-$(VERSION).tar.gz HEAD
	@echo build/sluice-$(VERSION).tar.gz

-include $(OBJ:.o=.d) $(FUZZ_OBJ:.o=.d) $(BUILD)/tests/sim_device.d $(BUILD)/tests/ring_fault.d $(SIM_SO).d $(TESTS:=.d) $(TOOLS:=.d) $(GPU_OBJ:.o=.d) $(BUILD)/bench/gpu/clock_wrap.d $(SHIMS:.so=.d) \
         $(CU_OBJ:.o=.d) $(SIMT_OBJ:.o=.d) $(PTX:.ptx=.d)
.PHONY: FORCE all install uninstall wheel dist cuda help test check-full check-night demo-model sass check-gpu bench-gpu gpu-kit tools tests deps demo-deps check-deps check oracle asan check-ptx powercut mutants fuzz \
        fuzzers tsan tidy format demo goldens help-md \
        tables plots clean $(BENCHES:%=bench-%) $(PLANNED:%=bench-%) bench-experts bench-lengths bench-lm-eval bench-evaluate bench-gpu-model bench-gpu-machines
.SECONDARY:
