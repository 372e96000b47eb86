package observe

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestEveryEventIsCompleteAndUnlikeTheOthers(t *testing.T) {
	if len(Kinds()) < 40 {
		t.Fatalf("%d events", len(Kinds()))
	}
	name := regexp.MustCompile(`^[a-z0-9]+(\.[a-z_]+)?$`)
	id := regexp.MustCompile(`^[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}$`)
	names, ids := map[string]bool{}, map[string]bool{}
	for _, k := range Kinds() {
		d := defs[k]
		if !name.MatchString(d.name) || names[d.name] {
			t.Errorf("event %d: name %q is malformed or there twice", k, d.name)
		}
		names[d.name] = true
		if byName[d.name] != k {
			t.Errorf("%s cannot be found by its name", d.name)
		}
		texts := []string{d.subject, d.what, d.did, d.doNow}
		if d.id == "" {
			if strings.Join(texts, "") != "" {
				t.Errorf("%s has a text and no identifier", d.name)
			}
			if d.level >= bad {
				t.Errorf("%s is an error without an identifier: an operator cannot look it up", d.name)
			}
			continue
		}
		if !id.MatchString(d.id) || ids[d.id] {
			t.Errorf("%s: identifier %q is malformed or there twice", d.name, d.id)
		}
		ids[d.id] = true
		for _, s := range texts {
			if s == "" || strings.ContainsAny(s, "\n\t") {
				t.Errorf("%s: a text is empty or has line breaks: %q", d.name, s)
			}
		}
	}
}

// An operator's scripts have these. They never change.
func TestIdentifiersStayWhatTheyAre(t *testing.T) {
	for k, id := range map[Kind]string{
		RequestStuck: "eaec91f3fe66453bae90827cba90bc82", WorkerExit: "e2247cbba6024db1b66458444692c876",
		GenerationBegin: "1d8c339758e140f4bb726b8ea867f263", ConfigRejected: "fd7e6cb9958e41139f7dedc78893e6c1",
	} {
		if k.MessageID() != id {
			t.Errorf("%s has the identifier %s, had %s", k, k.MessageID(), id)
		}
	}
}

func TestProtocolEventsExist(t *testing.T) {
	for _, name := range strings.Fields(`start generation.begin generation.ready generation.end p2p.selftest request.state request.done
		request.slow request.stuck transfer.completion_lost rank.divergence abort.receipt slot.quarantine slot.release fence.drop
		admission.reject edge.suspect health.change ready stopping stopped worker.exit config.rejected model.loaded model.failed`) {
		if byName[name] == 0 {
			t.Errorf("event %s is gone", name)
		}
	}
}

var placeholder = regexp.MustCompile(`@([^@ ]*)@`)

func TestCatalogueHoldsExactlyTheIdentifiedEvents(t *testing.T) {
	text := Catalog()
	found := map[string]bool{}
	for _, block := range strings.Split(text, "\n-- ")[1:] {
		id, rest, _ := strings.Cut(block, "\n")
		found[id] = true
		head, body, ok := strings.Cut(rest, "\n\n")
		if !ok || !strings.HasPrefix(head, "Subject: ") || !strings.Contains(head, "\nDefined-By: tandem") || strings.Count(body, "\n\n") < 2 {
			t.Errorf("block %s is not a header and three paragraphs", id)
		}
	}
	for _, k := range Kinds() {
		if id := k.MessageID(); id != "" && !found[id] {
			t.Errorf("%s is not in the catalogue", k)
		} else {
			delete(found, id)
		}
	}
	if len(found) != 0 {
		t.Errorf("the catalogue has identifiers that no event has: %v", found)
	}
	known := map[string]bool{}
	for _, f := range strings.Fields("GENERATION REQUEST ATTEMPT STATE ROLE RANK DEVICE AGE_MS REASON") {
		known["TANDEM_"+f] = true
	}
	for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
		if !known[m[1]] {
			t.Errorf("the catalogue shows the field %q, which is none of the common ones", m[1])
		}
	}
	for i, l := range strings.Split(text, "\n") {
		if len(l) > 160 {
			t.Errorf("line %d has %d bytes", i+1, len(l))
		}
	}
}

func TestJournalctlTakesTheCatalogue(t *testing.T) {
	if _, err := exec.LookPath("journalctl"); err != nil {
		t.Skip("journalctl is not installed")
	}
	root := t.TempDir()
	dir := filepath.Join(root, "usr/lib/systemd/catalog")
	for _, d := range []string{dir, filepath.Join(root, "var/lib/systemd/catalog")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "tandem.catalog"), []byte(Catalog()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("journalctl", "--root="+root, "--update-catalog").CombinedOutput(); err != nil || strings.Contains(string(out), "tandem.catalog") {
		t.Fatalf("journalctl --update-catalog: %v\n%s", err, out)
	}
	out, err := exec.Command("journalctl", "--root="+root, "--dump-catalog").CombinedOutput()
	if err != nil {
		t.Skipf("this journalctl cannot dump a catalogue of another root: %v: %s", err, out)
	}
	for _, k := range Kinds() {
		if id := k.MessageID(); id != "" && !strings.Contains(string(out), id) {
			t.Errorf("%s (%s) did not arrive", k, id)
		}
	}
}
