package config

import (
	"os"
	"strings"
	"testing"
)

func TestShippedExampleIsTheGeneratedOne(t *testing.T) {
	got, err := os.ReadFile("../../etc/tandem.example.toml")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != Example() {
		t.Errorf("etc/tandem.example.toml is not what Example gives. Write it anew: UPDATE=1 go test ./daemon/config -run %s", t.Name())
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile("../../etc/tandem.example.toml", []byte(Example()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestExampleHoldsEveryKeyAndChangesNothing(t *testing.T) {
	text := Example()
	c, err := Parse("/e.toml", text, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Digest() != Defaults().Digest() {
		t.Error("the example changes a value")
	}
	for i, l := range strings.Split(text, "\n") {
		if len(l) > 120 || strings.HasSuffix(l, " ") {
			t.Errorf("line %d has %d bytes, or ends in a space: %q", i+1, len(l), l)
		}
	}
	// A key is commented out by a # that touches it; words follow "# ".
	var live []string
	for _, l := range strings.Split(text, "\n") {
		if strings.HasPrefix(l, "#") && !strings.HasPrefix(l, "# ") {
			l = l[1:]
		}
		live = append(live, l)
	}
	c, err = Parse("/e.toml", strings.Join(live, "\n"), nil)
	if err != nil {
		t.Fatalf("with every key switched on: %v", err)
	}
	if c.Digest() != Defaults().Digest() {
		t.Errorf("with every key switched on it is not the defaults:\n%s\n%s", c.TOML(), Defaults().TOML())
	}
	if n := len(c.origins); n != len(Keys()) || n < 40 {
		t.Errorf("%d keys are in the example, of %d", n, len(Keys()))
	}
}

func TestWorkingExampleAndConffileLoad(t *testing.T) {
	if _, err := Parse("/e.toml", WorkingExample, nil); err != nil {
		t.Error(err)
	}
	c, err := Load("../../etc/tandem.toml", nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Digest() != Defaults().Digest() {
		t.Error("the conffile changes a value")
	}
}

// The names users rely on. More may be added; none may go.
func TestKeysThatUsersRelyOn(t *testing.T) {
	const promised = `
server listen state_dir api_keys_file max_body cors_origins keepalive
model path name aliases context_length max_output_tokens
backend kind kernels
prefill devices tensor_parallel chunk_tokens
decode devices tensor_parallel max_batch
kv memory_fraction cpu_bytes transport prefix_cache digest
limits max_requests max_queued max_attempts
deadlines queue reserve prefill_stall handoff transfer verify first_token token_stall quarantine progress request
restart budget window backoff_min backoff_max
admin socket
log level format`
	n := 0
	for _, line := range strings.Split(strings.TrimSpace(promised), "\n") {
		words := strings.Fields(line)
		for _, leaf := range words[1:] {
			n++
			if keys.byName[words[0]+"."+leaf] == nil {
				t.Errorf("key %s.%s is gone", words[0], leaf)
			}
		}
	}
	if n != 45 {
		t.Errorf("the list has %d keys", n)
	}
}
