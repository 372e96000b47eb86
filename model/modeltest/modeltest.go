// Package modeltest finds the demo model for tests.
package modeltest

import (
	"os"
	"path/filepath"
	"testing"
)

// Path is the demo model's file: $TANDEM_TEST_MODEL, else where `tandem model
// pull smollm2-135m` puts it. The test is skipped when there is none, unless
// TANDEM_TEST_NEEDS_MODEL is set, as CI does: then it fails.
func Path(t testing.TB) string {
	t.Helper()
	if p := os.Getenv("TANDEM_TEST_MODEL"); p != "" {
		return p
	}
	data := os.Getenv("XDG_DATA_HOME")
	if data == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		data = filepath.Join(home, ".local", "share")
	}
	for _, dir := range []string{filepath.Join(data, "tandem", "models"), "/var/lib/tandem/models"} {
		p := filepath.Join(dir, "smollm2-135m.gguf")
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	if os.Getenv("TANDEM_TEST_NEEDS_MODEL") != "" {
		t.Fatal("no demo model: run `tandem model pull smollm2-135m`")
	}
	t.Skip("no demo model: run `make model`, which pulls smollm2-135m")
	return ""
}
