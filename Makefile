# Targets for people. `make` lists them; what each does in detail is in scripts/.

# The toolchain that go.mod names is fetched by any Go from 1.21 on.
GO ?= go
# Building in somebody else's checkout, as root or in a container, is deliberate.
export GIT_CONFIG_COUNT = 1
export GIT_CONFIG_KEY_0 = safe.directory
export GIT_CONFIG_VALUE_0 = $(CURDIR)

# Of a package: the last tag, and what came after it.
DEB_VERSION = $(shell git describe --tags --match 'v[0-9]*' 2>/dev/null | sed 's/^v//; s/-\([0-9]*\)-g/+\1.g/' | grep . || git log -1 --format='0~%cd.%h' --date=format:%Y%m%d%H%M%S)

.DEFAULT_GOAL := help
.PHONY: help build model run test test-systemd explore chaos chaos-kills soak clients bench bounds quality man completions catalog install deb clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1 /p' $(firstword $(MAKEFILE_LIST)) | while read -r name what; do printf '%-14s %s\n' "$$name" "$$what"; done

build: check-tools ## bin/tandem, and nothing else
	$(GO) build -buildvcs=true -trimpath -o bin/tandem ./daemon

model: build ## fetch the demo model, if it is not there
	bin/tandem model pull smollm2-135m

run: build model ## serve the demo model on 127.0.0.1:8000
	@echo 'When it says ready: bin/tandem chat --temperature 0 "What is the capital of France?"   (stop it with Ctrl-C)'
	@exec bin/tandem serve $(ARGS)

test: build model ## everything that CI runs
	TANDEM_TEST_NEEDS_MODEL=1 scripts/test

test-systemd: build model ## the service under a real systemd, with all that it says; needs root
	TANDEM_TEST_NEEDS_MODEL=1 scripts/test systemd

explore: ## every order of events in small worlds, on what is shipped: STATES=N of each (0: all), FAULTS=N on a path
	$(GO) test -count=1 -v -timeout 12h -run '^TestExplore$$' ./daemon/core -explore.states=$(or $(STATES),1000000) -explore.faults=$(or $(FAULTS),2)

clients: build model ## the official SDKs against a running daemon
	scripts/clients

bench: build model ## speed through the endpoint beside the machine's bounds; PEER=DIR adds llama.cpp (scripts/peer/llama.sh)
	$(GO) run ./scripts/bench $(if $(PEER),-peer $(PEER)) bin/tandem

chaos: build model ## every fault on the real appliance, also those that take long; SEED=N repeats a run
	TANDEM_TEST_NEEDS_MODEL=1 $(GO) test -count=1 -v -timeout 1h ./daemon/chaos -all $(if $(SEED),-seed $(SEED))

chaos-kills: build model ## KILLS=N (200): ranks killed at random under thirty streams: errors, pauses
	TANDEM_TEST_NEEDS_MODEL=1 $(GO) test -count=1 -v -timeout 3h -run '^TestKillStorm$$' ./daemon/chaos -kills $(or $(KILLS),200) $(if $(SEED),-seed $(SEED))

soak: build model ## DURATION=30m: thirty clients and random faults; a line a minute
	TANDEM_TEST_NEEDS_MODEL=1 $(GO) test -count=1 -v -timeout 48h -run '^TestF40_Soak$$' ./daemon/chaos -soak $(or $(DURATION),30m) $(if $(SEED),-seed $(SEED))

quality: build model ## what the 8-bit activations of the fast kernels lose against float32
	TANDEM_TEST_NEEDS_MODEL=1 $(GO) test -count=1 -v -timeout 1h -run '^TestQuality$$' ./model/llama -positions=4608

bounds: build model ## 3000 clients at once, slow ones among them, and a worker that does not read: what it costs, how late the loop is
	TANDEM_TEST_NEEDS_MODEL=1 $(GO) test -count=1 -v -timeout 1h -run '^TestBounds' ./daemon/chaos -bounds.streams=3000 -bounds.late=100ms

man: check-tools ## out/man: the manual pages
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || date +%s) $(GO) run ./packaging/gen man out/man

completions: check-tools ## out/completions: for bash, zsh and fish
	$(GO) run ./packaging/gen completions out/completions

catalog: check-tools ## write packaging/catalog anew from the events in the code
	$(GO) run ./packaging/gen catalog packaging/catalog/tandem.catalog

install: build man completions ## what a package holds, below $(DESTDIR)
	packaging/install bin/tandem out $(DESTDIR)

deb: build man completions ## out/tandem_VERSION_ARCH.deb, of what is committed
	@[ -z "$$(git status --porcelain)" ] || { echo 'there are changes that are not committed: a package holds a revision, so commit or stash them' >&2; exit 1; }
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) packaging/deb/build bin/tandem out "$(DEB_VERSION)" "out/tandem_$(DEB_VERSION)_$$(dpkg --print-architecture).deb"

clean: ## remove bin and out
	rm -rf bin out

# One line that says exactly what is missing.
.PHONY: check-tools
check-tools:
	@command -v $(GO) >/dev/null || { echo 'there is no go: apt-get install golang-go (1.21 or newer), or see https://go.dev/doc/install' >&2; exit 1; }
	@v=$$(GOTOOLCHAIN=local $(GO) env GOVERSION 2>/dev/null); v=$${v##*go1.}; v=$${v%%[!0-9]*}; [ "$${v:-0}" -ge 21 ] || { echo "Go 1.$${v:-?} is too old: 1.21 or newer fetches the one that go.mod names, see https://go.dev/doc/install" >&2; exit 1; }
	@command -v $${CC:-gcc} >/dev/null || { echo 'there is no C compiler: apt-get install gcc libc6-dev' >&2; exit 1; }
	@[ ! -e .git ] || command -v git >/dev/null || { echo 'there is no git, with which a build says what it was built from: apt-get install git' >&2; exit 1; }
