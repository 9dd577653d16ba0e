# sluice: `make deps` installs what the build needs, `make` builds ./sluice, `make check` tests it all.
CC      ?= gcc
V       ?= 0
BUILD   ?= build
OPT     ?= -O2 -g
SAN     ?=
Q       := $(if $(filter 0,$(V)),@,)
say      = $(if $(filter 0,$(V)),@printf '  %-5s %s\n' $(1) $(2),@:)

WARN    := -Wall -Wextra -Wshadow -Wvla -Wmissing-prototypes -Wstrict-prototypes -Werror
CFLAGS  := -std=c17 -D_GNU_SOURCE -I. $(OPT) $(WARN) $(SAN) -ffp-contract=off -fno-math-errno -pthread -MMD -MP
LDLIBS  := -ljansson -lpcre2-8 -lutf8proc -luring -lhwloc -lzstd -ldl -lm -pthread

SRC     := $(wildcard policy/*.c kernels/*.c kernels/ref/*.c kernels/cpu/*.c offload/*.c engine/*.c bench/*.c)
OBJ     := $(SRC:%.c=$(BUILD)/%.o)
LIB_OBJ := $(filter-out $(BUILD)/engine/main.o,$(OBJ))
TEST_SRC := $(wildcard tests/*_test.c)
TESTS   := $(TEST_SRC:tests/%.c=$(BUILD)/tests/%)

all: sluice

sluice: $(OBJ)
	$(call say,LINK,$@)
	$(Q)$(CC) $(SAN) -o $@ $^ $(LDLIBS)

$(BUILD)/%_avx512.o: CFLAGS += -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mavx512vnni -mfma -mf16c
$(BUILD)/%_avx2.o: CFLAGS += -mavx2 -mfma -mf16c

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS) -c -o $@ $<

$(BUILD)/libsluice.a: $(LIB_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/tests/%_test: $(BUILD)/tests/%_test.o $(BUILD)/libsluice.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(SAN) -o $@ $< $(BUILD)/libsluice.a $(LDLIBS) -lcmocka

$(BUILD)/tests/tools/%: $(BUILD)/tests/tools/%.o $(BUILD)/libsluice.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(SAN) -o $@ $< $(BUILD)/libsluice.a $(LDLIBS)

tests: $(TESTS)

clean:
	$(Q)rm -rf $(BUILD) sluice sluice-cuda.so

-include $(OBJ:.o=.d) $(TESTS:=.d) $(wildcard $(BUILD)/tests/tools/*.d)
.PHONY: all tests clean
.SECONDARY:
