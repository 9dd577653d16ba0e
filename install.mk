# Of Makefile: what is installed, and the archive of the sources. .ci/install.sh knows where each file goes.
PREFIX  ?= /usr/local
DESTDIR ?=
VERSION  = $(shell sed -n 's/.*SLUICE_VERSION "\(.*\)"/\1/p' engine/app/version.h)

## install: installs into PREFIX=/usr/local, under DESTDIR= for a package; uninstall: removes just that
install: all
	$(Q)BIN=./$(BIN) CUDA_SO=$(CUDA_SO) PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' .ci/install.sh install
uninstall:
	$(Q)PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' .ci/install.sh uninstall

## dist: packs the committed sources into build/sluice-VERSION.tar.gz, the commit written in
dist:
	@mkdir -p build
	$(Q)git archive --prefix=sluice-$(VERSION)/ -o build/sluice-$(VERSION).tar.gz HEAD
	@echo build/sluice-$(VERSION).tar.gz

.PHONY: install uninstall dist
