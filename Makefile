# sluice: `make demo` shows it at work, `make check` tests it all; `make` builds ./sluice.
# V=1 prints commands; BUILD=, OPT= and SAN= make other builds; CUDA=0 leaves the CUDA part out.
ifeq ($(origin CC),default)
CC      := gcc
endif
V       ?= 0
BUILD   ?= build
OPT     ?= -O2 -g
SAN     ?=
NVCC    ?= $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc))
CUDA    ?= $(if $(NVCC),1,0)
Q       := $(if $(filter 0,$(V)),@,)
say      = $(if $(filter 0,$(V)),@printf '  %-5s %s\n' $(1) $(2),@:)

, := ,
WARN    := -Wall -Wextra -Wshadow -Wvla -Wmissing-prototypes -Wstrict-prototypes -Werror
CFLAGS  := -std=c17 -D_GNU_SOURCE -I. $(OPT) $(WARN) $(SAN) -ffp-contract=off -fno-math-errno -pthread -MMD -MP
LDLIBS  := -ljansson -lpcre2-8 -lutf8proc -luring -lhwloc -lzstd -lisal -ldl -lm -pthread
# Binaries of every card from Turing to Hopper, PTX of the last for what comes after. CUDA_ARCHS="75 90" builds less.
CUDA_ARCHS ?= 75 80 86 89 90
NVLAST  := $(lastword $(CUDA_ARCHS))
NVARCH  := $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a)$(,)code=sm_$(a)) -gencode arch=compute_$(NVLAST)$(,)code=compute_$(NVLAST)
# The library is a third of the size, and loads in the same time (nvcc 12.8 and above).
NVSMALL := $(if $(filter 0,$(CUDA)),,$(shell $(NVCC) --help 2>/dev/null | grep -q compress-mode && echo --compress-mode=size))
NVFLAGS := -std=c++17 -O3 -fmad=false -lineinfo -Werror all-warnings -I. -Xcompiler -fPIC,-fvisibility=hidden,-pthread -MMD -MP
# Locals hold no zeros by chance, where g++ can see to that (12 and above).
SIMT_INIT = $(shell $(CXX) -ftrivial-auto-var-init=pattern -E -x c++ /dev/null >/dev/null 2>&1 && \
                    echo -ftrivial-auto-var-init=pattern)
SIMT_FLAGS = -x c++ -std=c++17 -O1 -g1 -I. -Itests/simt/cudart -include tests/simt/device.h -ffp-contract=off -fno-math-errno -fno-exceptions \
             -fno-strict-aliasing $(SIMT_INIT) -fsanitize=thread,undefined --param tsan-instrument-func-entry-exit=0 \
             -Wall -Wextra -Wno-unknown-pragmas -Werror $(filter -w,$(WARN)) -MMD -MP

SRC     := $(wildcard policy/*.c kernels/*.c kernels/ref/*.c kernels/cpu/*.c offload/*.c engine/*/*.c bench/*.c)
OBJ     := $(SRC:%.c=$(BUILD)/%.o)
LIB_OBJ := $(filter-out $(BUILD)/engine/app/main.o,$(OBJ))
CU      := $(if $(filter 0,$(CUDA)),,$(wildcard kernels/cuda/*.cu))
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
FORMAT  := $(wildcard $(addsuffix /*.[ch],policy kernels kernels/ref kernels/cpu offload engine/* bench tests tests/fuzz \
                                    tests/simt tests/simt/cudart tests/tools tests/gpu)) \
           $(wildcard kernels/cuda/*.cu* tests/simt/*.cu)
VENV    := build/venv
GOLDENV := build/venv-goldens
# The binary stands at the top of the tree; other builds keep theirs to themselves.
BIN     := $(if $(filter build,$(BUILD)),sluice,$(BUILD)/sluice)
CUDA_SO := $(if $(CU),$(BIN)-cuda.so)

all: $(BIN) $(CUDA_SO)

# Devices in libraries of their own call the program's functions.
$(BIN): $(OBJ)
	$(call say,LINK,$@)
	$(Q)$(CC) $(SAN) -rdynamic -o $@ $^ $(LDLIBS)

$(BUILD)/%_avx512.o: CFLAGS += -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mavx512vnni -mfma -mf16c
# Tiles besides; what is not tiles is AVX-512.
$(BUILD)/%_amx.o: CFLAGS += -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mavx512vnni -mfma -mf16c -mamx-tile -mamx-bf16
$(BUILD)/%_avx2.o: CFLAGS += -mavx2 -mfma -mf16c
# Sanitized, the portable set and the plain loops may call fmaf() as one instruction where the CPU has it: the same
# numbers, and the sweeps of `make check` take a third of the time.
ifneq ($(SAN),)
HAS_FMA := $(if $(shell grep -m1 -w fma /proc/cpuinfo),-mfma)
$(BUILD)/%_portable.o: CFLAGS += $(HAS_FMA)
$(BUILD)/kernels/ref/%.o: CFLAGS += $(HAS_FMA)
endif

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS) -c -o $@ $<

$(BUILD)/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) $(NVSMALL) $(NVFLAGS) $(NVARCH) -c -o $@ $<

$(BIN)-cuda.so: $(CU_OBJ)
	$(call say,LINK,$@)
	$(Q)$(NVCC) -shared -Xcompiler -static-libstdc++,-static-libgcc -Xlinker --exclude-libs=ALL -o $@ $^

$(BUILD)/%.simt.o: %.cu
	@mkdir -p $(@D)
	$(call say,SIMT,$<)
	$(Q)$(CXX) $(SIMT_FLAGS) -c -o $@ $<

$(BUILD)/libsimt.a: $(SIMT_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/libsluice.a: $(LIB_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/tests/%_test: $(BUILD)/tests/%_test.o $(BUILD)/libsluice.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(SAN) -o $@ $(filter %.o,$^) $(filter-out $(BUILD)/libsluice.a,$(filter %.a,$^)) $(BUILD)/libsluice.a \
	    $(LDLIBS) -lcmocka

$(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/simt_*_test.c)): $(BUILD)/libsimt.a
# The tests of kernels again, for a device that is there; it takes from the program what it needs of kernels/.
GPU_TESTS := $(patsubst %,$(BUILD)/tests/gpu/%_test,rows head decode matmul attend experts)
$(GPU_TESTS:=.o): $(BUILD)/tests/gpu/%.o: tests/simt_%.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS) -DTEST_ON_DEVICE -c -o $@ $<
$(GPU_TESTS): $(BUILD)/tests/gpu/shim.o $(BUILD)/tests/sim_device.o
$(GPU_TESTS) $(BUILD)/tests/device_test $(BUILD)/tests/flat_test $(BUILD)/tests/line_device_test: LDLIBS += -Wl,--export-dynamic
$(patsubst %,$(BUILD)/tests/%_test,device flat line_device probe simulate): $(BUILD)/tests/sim_device.o

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

tools: $(TOOLS) $(SHIMS) $(SIM_SO)
# ThreadSanitizer: all but the kernels of instruction sets (they take long to build, and runs are asked
# for --isa portable) and the decoders, whose target_clones are chosen before it is up.
ifeq ($(BUILD),build/tsan)
SAN := -fsanitize=thread
$(filter-out %_avx2.o %_avx512.o %_amx.o $(BUILD)/kernels/dtype%.o,$(OBJ)) $(TESTS:=.o) $(BUILD)/tests/sim_device.o $(SIM_SO): CFLAGS += $(SAN)
endif

tests: $(TESTS) tools

# What has to be installed: for the build, for `make demo`, for `make check`.
deps:
	$(Q).ci/deps.sh
demo-deps:
	$(Q).ci/deps.sh demo
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

# Every test there is; ends in one line. ARGS="--only NAME" builds and runs some, ARGS="--list" names them.
check:
	$(Q).ci/deps.sh check
	$(Q)python3 tests/check.py $(ARGS)

asan:
	$(Q)python3 tests/check.py --asan $(ARGS)

# 30 power cuts of an ext4 disk under running jobs (root, loop devices).
powercut: all $(SHIMS)
	$(Q)python3 tests/powercut_test.py --level night

# Can the tests see? Faults of one line in copies of the source, each to be met by a test that it names.
mutants: check-deps
	$(Q)python3 tests/mutants.py $(ARGS)

# Fuzzes each parser until it has had RUNS executions in all (kept in build/fuzz/work, so that it
# goes on where it stopped). ONLY=NAME: one; SECONDS=N: at most so long for each.
RUNS ?= 10000000
fuzz:
	$(Q).ci/deps.sh fuzz
	$(Q)$(MAKE) --no-print-directory BUILD=build/fuzz fuzzers
	$(Q)python3 tests/fuzz/run.py --runs $(RUNS) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(ONLY),--only $(ONLY))

# Races: the parts that have threads, and a small streamed run. Not part of `make check`.
TSAN_TESTS := mover_test ring_test pool_test device_test line_device_test job_ahead_test
tsan:
	$(Q)$(MAKE) --no-print-directory BUILD=build/tsan build/tsan/sluice build/tsan/tests/sim_device.so \
	    $(TSAN_TESTS:%=build/tsan/tests/%)
	$(Q)python3 tests/tools/tsan.py $(TSAN_TESTS)

tidy:
	$(Q)python3 tests/tidy.py

format:
	$(Q)clang-format -i $(FORMAT)

demo: demo-deps
	$(Q)$(MAKE) --no-print-directory all
	$(Q)tests/demo.sh ./sluice

# The tiny models' goldens; with SMOLLM2=FILE.gguf PROMPTS=gsm8k.jsonl TEXT=wikitext.txt the big ones too.
goldens: $(GOLDENV)/ready
	$(Q)$(GOLDENV)/bin/python tests/goldens/make_families.py
	$(Q)$(GOLDENV)/bin/python tests/goldens/make.py \
	    $(if $(SMOLLM2),--smollm2 $(SMOLLM2) --prompts $(PROMPTS) --text $(TEXT))

# A table of the README, measured on this machine: idle, committed, as root where disk or memory is held
# (bench/run.py --help; ARGS= are its flags). Then into the README.
BENCHES := ram streamed h2o formats budget batch ops libraries quality start
$(BENCHES:%=bench-%):
	$(Q)bench/run.py $(@:bench-%=%) $(ARGS)
	$(Q)bench/tables.py --write README.md $(@:bench-%=%)

# How good the planner is, likewise; each goes on where it was stopped (paper runs nothing).
PLANNED := predict choice hand paper
$(PLANNED:%=bench-%):
	$(Q)bench/$(@:bench-%=%).py $(ARGS)
	$(Q)bench/tables.py --write README.md $(@:bench-%=%)

# What a change of plan under way is worth; as root, its CSV has no table in the README.
bench-replan:
	$(Q)bench/replan.py $(ARGS)

# Mixtures of experts of 31 and 47 billion parameters under 4 GiB of memory; its CSV has no table either.
bench-experts:
	$(Q)bench/experts.py $(ARGS)

# The adapter for lm-evaluation-harness beside the harness's own hf model, on tasks made on the spot (bench/lm_eval_local.py
# --help; PYTHON names an interpreter that has lm_eval, torch and transformers).
bench-lm-eval:
	$(Q)$(or $(PYTHON),python3) bench/lm_eval_local.py $(ARGS)

# What KV policies, budgets and formats cost: needles, perplexity, ROUGE, GSM8K (bench/evaluate.py --help), no table either.
bench-evaluate:
	$(Q)bench/evaluate.py $(ARGS)

# The README's tables and plots, out of bench/results/*.csv (plots need gnuplot).
tables:
	$(Q)bench/tables.py --write README.md
plots:
	$(Q)bench/tables.py --write README.md --plots

# Is what a GPU computes right? In stages, resumable, into build/gpu/check.csv (tests/gpu/check_gpu.py --help; ARGS= are its
# flags). DEVICE=build/tests/sim_device.so:1,20 tries it without one.
CHECKPOINTS := llama-mha-bf16 llama-mha-q4_1.gguf llama-mha-q8_0.gguf llama-gqa-q4_0.gguf llama-gqa-q5_0.gguf llama-gqa-q5_1.gguf \
               llama-rope3-q8_0.gguf llama-bias-f16 llama-k-q4_k.gguf opt-mha-bf16 opt-post-q4_0.gguf opt-untied-bf16
build/gpu/models/ready: tests/goldens/tiny.py Makefile | $(VENV)/ready
	$(call say,MODELS,$(@D))
	$(Q)rm -rf $(@D) && $(VENV)/bin/python $< $(@D) $(CHECKPOINTS) >/dev/null
	$(Q)touch $@

CHECK_GPU := $(GPU_TESTS) $(addprefix $(BUILD)/tests/,flat_test device_test line_device_test)
check-gpu: all $(CHECK_GPU) $(SIM_SO) build/gpu/models/ready
	$(Q)DEVICE=$(or $(DEVICE),cuda) python3 tests/gpu/check_gpu.py $(ARGS)

# The figures on a GPU, likewise: bench/results/gpu_*.csv (bench/gpu.py --help).
bench-gpu: all
	$(Q)DEVICE=$(or $(DEVICE),cuda) bench/gpu.py $(ARGS)

# All that a machine with a GPU needs, in one folder (tests/gpu/kit.py says what); as root it is tried in a root of its own.
KIT := build/gpu-kit/sluice-gpu
gpu-kit: all $(CHECK_GPU) $(SIM_SO) build/gpu/models/ready
	$(Q)python3 tests/gpu/kit.py -o $(KIT) --tests $(BUILD)/tests
	$(Q)if [ "$$(id -u)" = 0 ] && command -v unshare dash >/dev/null; then tests/gpu/bare.sh $(KIT); else \
	    echo "not tried in a bare root: needs root, unshare and dash"; fi

clean:
	$(Q)rm -rf $(BUILD) $(BIN) $(BIN)-cuda.so

# The PTX of every architecture, interpreted in the fibers of the SIMT shim: what nvcc makes of the kernels gives the bits
# of the tests. Once per release: minutes. ARGS="--plant", ARGS="--test NAME"; CUDA_ARCHS="80" looks at one.
PTX_CU    := $(filter kernels/cuda/%,$(SIMT_CU))
PTX       := $(foreach a,$(CUDA_ARCHS),$(PTX_CU:kernels/cuda/%.cu=$(BUILD)/ptx/$(a)/%.ptx))
PTX_TESTS := $(filter-out %/simt_shim_test %/simt_ptx_test,$(filter $(BUILD)/tests/simt_%,$(TESTS)))

define PTX_RULE
$(BUILD)/ptx/$(1)/%.ptx: kernels/cuda/%.cu
	@mkdir -p $$(@D)
	$$(call say,PTX,$$@)
	$$(Q)$(NVCC) $(NVFLAGS) -ptx -arch=compute_$(1) -o $$@ $$<
endef
$(foreach a,$(CUDA_ARCHS),$(eval $(call PTX_RULE,$(a))))

# Registers and spills of every kernel on every architecture: a table, and a failure where one spills on sm_80 and above.
registers:
	$(Q)$(if $(NVCC),,echo "make registers needs nvcc (NVCC=PATH names it)" >&2; exit 1)
	$(Q)python3 tests/tools/registers.py -o bench/results/cuda-registers.csv $(NVCC) $(NVFLAGS) -- $(CUDA_ARCHS)

check-ptx:
	$(Q)$(if $(NVCC),,echo "make check-ptx needs nvcc (NVCC=PATH names it)" >&2; exit 1)
	$(Q)$(MAKE) --no-print-directory $(PTX) $(PTX_TESTS)
	$(Q)python3 tests/tools/ptx.py $(ARGS) $(CUDA_ARCHS)

-include $(OBJ:.o=.d) $(FUZZ_OBJ:.o=.d) $(BUILD)/tests/sim_device.d $(SIM_SO).d $(TESTS:=.d) $(TOOLS:=.d) $(SHIMS:.so=.d) \
         $(CU_OBJ:.o=.d) $(SIMT_OBJ:.o=.d) $(PTX:.ptx=.d)
.PHONY: all registers check-gpu bench-gpu gpu-kit tools tests deps demo-deps check-deps check asan check-ptx powercut mutants fuzz \
        fuzzers tsan tidy format demo goldens \
        tables plots clean $(BENCHES:%=bench-%) $(PLANNED:%=bench-%) bench-replan bench-experts bench-lm-eval bench-evaluate
.SECONDARY:
