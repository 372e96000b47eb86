package chaos

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// F22: more answers than the pool has pages for: some wait, some are set back and go
// on where they were; none is lost or differs. None ends with kv_exhausted either: a
// request that fits the window fits the pool once it has that to itself.
func TestF22_PoolTooSmallForAll(t *testing.T) {
	small := []string{"model.context_length=512", `kv.cpu_bytes="14MiB"`} // nine pages of 64 tokens
	a := start(t, small...)
	var qs []question
	var want []string
	for i := range 3 {
		q := question{prompt: []int32{1, 2, 3, int32(100 + i), 5}, tokens: 400}
		qs = append(qs, q)
		want = append(want, a.mustGet(q).text)
	}
	compare(t, "together", want, texts(a.all(qs)))
	retracted := strings.Count(a.log(), "needed by an older request")
	if retracted == 0 {
		t.Error("nothing was ever set back: the pool was not too small")
	}
	a.settled()
}

// An operator's restart under load loses nothing.
func TestRestartUnderLoad(t *testing.T) {
	a := start(t)
	var want []string
	for _, q := range questions {
		want = append(want, a.mustGet(q).text)
	}
	for range 3 {
		done := a.begin(questions)
		a.within(5*time.Second, "running", func() bool { return a.status().Running > 0 })
		if err := a.post("/restart", "reason=test"); err != nil {
			t.Fatal(err)
		}
		compare(t, "restarted", want, texts((<-done).must(t)))
		a.waitReady()
	}
	a.settled()
	if g := a.status().Generation; g != 4 {
		t.Errorf("generation %d after three restarts", g)
	}
}

// An operator cancels one request; the others do not notice.
func TestOperatorCancels(t *testing.T) {
	a := start(t)
	want := a.mustGet(questions[1]).text
	other := a.begin(questions[1:2])
	var id string
	q := question{prompt: []int32{1, 2, 3}, tokens: 2000}
	q.more = map[string]any{}
	failed := make(chan error, 1)
	begun := make(chan string, 1)
	q.on = func(pieces int, _ string) {
		if pieces == 3 {
			begun <- ""
		}
	}
	go func() {
		_, err := a.get(context.Background(), q)
		failed <- err
	}()
	<-begun
	var rs []struct {
		ID     string `json:"id"`
		Prompt int    `json:"prompt_tokens"`
	}
	if err := a.ask("/requests", &rs); err != nil {
		t.Fatal(err)
	}
	for _, r := range rs {
		if r.Prompt == 3 {
			id = r.ID
		}
	}
	if err := a.post("/requests/"+id+"/cancel", ""); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "cancelled") {
		t.Errorf("the cancelled stream: %v", err)
	}
	if got := (<-other).must(t)[0].text; got != want {
		t.Errorf("another answer changed: %q", got)
	}
	a.settled()
	if s := a.stories(id); s.Outcome != "cancelled" || len(s.Events) == 0 {
		t.Errorf("%+v", s)
	}
}

func (a *appliance) post(path, form string) error {
	c := &http.Client{Timeout: 10 * time.Second, Transport: a.unix()}
	r, err := c.Post("http://tandem"+path, "application/x-www-form-urlencoded", strings.NewReader(form))
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != 200 {
		return fmt.Errorf("%s: %s", path, r.Status)
	}
	return nil
}
