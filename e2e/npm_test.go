package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestNodeSDK runs npm/'s tests against the fake endpoint. It needs node and
// `npm ci` in npm/.
func TestNodeSDK(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node in PATH")
	}
	if _, err := os.Stat("npm/node_modules/openai"); err != nil {
		t.Skip("the SDK is not installed: run `npm ci --omit=peer` in e2e/npm")
	}
	p, _ := faked(t)
	c := exec.CommandContext(p.ctx, node, "--test", "--test-reporter=tap", "openai.test.mjs")
	c.Dir = "npm"
	c.Env = append(os.Environ(), "TANDEM_URL="+p.base)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// Tests that nobody ran prove nothing.
	if s := string(out); !strings.Contains(s, "# fail 0") || !strings.Contains(s, "# skipped 0") || strings.Contains(s, "# pass 0") {
		t.Errorf("%s", s)
	}
}
