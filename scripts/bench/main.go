// Command bench measures the appliance through its endpoint, beside the bounds of
// the machine it runs on and, if given, a peer on the same model and cores:
//
//	go run ./scripts/bench [-rounds 4] [-peer DIR] [-json] bin/tandem
//
// A round measures reading a prompt of 512 tokens, and writing 96 tokens at 1, 8
// and 16 streams that each have a prompt of 32; ours and the peer's rounds
// alternate, and medians are compared. What is ours includes HTTP, the daemon and
// this client on the same cores; the peer (scripts/peer/llama.sh builds it) is
// driven directly.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"tandem/kernels/cpu/roof"
	"tandem/model/family"
)

var names = []string{"prefill 512", "1 stream", "8 streams", "16 streams"}

type figures [4]float64 // tokens a second, as names

func main() {
	rounds := flag.Int("rounds", 4, "rounds of each side")
	peer := flag.String("peer", "", "folder that scripts/peer/llama.sh built into")
	asJSON := flag.Bool("json", false, "print JSON")
	model := flag.String("model", "", "weight file (default: the demo model)")
	flag.Parse()
	if err := bench(flag.Arg(0), *model, *peer, *rounds, *asJSON); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(binary, model, peer string, rounds int, asJSON bool) error {
	if binary == "" {
		return fmt.Errorf("usage: bench [flags] path/to/tandem")
	}
	if model == "" {
		data := os.Getenv("XDG_DATA_HOME")
		if data == "" {
			data = filepath.Join(os.Getenv("HOME"), ".local", "share")
		}
		model = filepath.Join(data, "tandem", "models", "smollm2-135m.gguf")
	}
	m, err := family.Open(model)
	if err != nil {
		return err
	}
	defer m.Close()
	cores := runtime.NumCPU()
	machine, err := roof.Measure(cores, m.Info.WeightBytes)
	if err != nil {
		return err
	}

	a, err := start(binary, model)
	if err != nil {
		return err
	}
	defer a.stop()
	if _, err := a.round(); err != nil { // warms up
		return err
	}
	var ours, theirs []figures
	for range rounds {
		f, err := a.round()
		if err != nil {
			return err
		}
		ours = append(ours, f)
		if peer == "" {
			continue
		}
		// The peer is given the machine: our workers sleep while nobody asks.
		out, err := exec.Command(filepath.Join(peer, "drive"), model, strconv.Itoa(cores), "1").Output()
		if err != nil {
			return fmt.Errorf("peer: %w", err)
		}
		var p figures
		if n, err := fmt.Sscan(string(out), &p[0], &p[1], &p[2], &p[3]); n != 4 {
			return fmt.Errorf("peer printed %q: %v", out, err)
		}
		theirs = append(theirs, p)
	}
	return report(m, machine, cores, median(ours), median(theirs), rounds, asJSON)
}

func median(fs []figures) (out figures) {
	if len(fs) == 0 {
		return out
	}
	for k := range out {
		var v []float64
		for _, f := range fs {
			v = append(v, f[k])
		}
		slices.Sort(v)
		out[k] = v[len(v)/2]
		if len(v)%2 == 0 {
			out[k] = (v[len(v)/2-1] + v[len(v)/2]) / 2
		}
	}
	return out
}

// bounds are what the machine would allow if nothing but the weights had to be
// read, and nothing but the products of the linear layers computed.
func bounds(m *family.Model, r roof.Roof) (out figures) {
	s := m.Info.Shape
	q, kv := s.Heads*s.HeadDim, s.Units*s.HeadDim
	perLayer := float64(s.Width*(2*q+2*kv) + 3*s.Width*s.Hidden)
	ops := 2 * perLayer * float64(s.Layers)
	head := 2 * float64(s.Vocab) * float64(s.Width)
	bytes := float64(m.Info.WeightBytes)
	rate := r.Int8() * float64(r.Threads)
	out[0] = rate / ops
	for k, n := range []float64{1, 8, 16} {
		step := max(bytes/r.ReadAll, n*(ops+head)/rate)
		out[k+1] = n / step
	}
	return out
}

func report(m *family.Model, r roof.Roof, cores int, ours, theirs figures, rounds int, asJSON bool) error {
	bound := bounds(m, r)
	if asJSON {
		return json.NewEncoder(os.Stdout).Encode(map[string]any{"machine": r, "cores": cores, "names": names, "ours": ours, "bound": bound, "peer": theirs, "rounds": rounds})
	}
	fmt.Printf("%s, %d cores, %s\n", processor(), cores, r)
	fmt.Printf("%s %s, %d MB of weights; medians of %d rounds, tokens a second\n\n", m.Info.Name, m.Info.Quantisation, m.Info.WeightBytes/1e6, rounds)
	fmt.Printf("%-12s %9s %9s %7s", "", "tandem", "bound", "")
	if theirs[0] > 0 {
		fmt.Printf(" %10s %7s", "llama.cpp", "ratio")
	}
	fmt.Println()
	for k, n := range names {
		fmt.Printf("%-12s %9.0f %9.0f %6.0f%%", n, ours[k], bound[k], 100*ours[k]/bound[k])
		if theirs[0] > 0 {
			fmt.Printf(" %10.0f %7.2f", theirs[k], ours[k]/theirs[k])
		}
		fmt.Println()
	}
	return nil
}

func processor() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.Trim(name, " \t:\n")
		}
	}
	return runtime.GOARCH
}

// appliance is `tandem serve` in a home of its own.
type appliance struct {
	cmd  *exec.Cmd
	home string
	url  string
	rnd  *rand.Rand
}

func start(binary, model string) (*appliance, error) {
	home, err := os.MkdirTemp("", "tandem-bench-")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	l.Close()
	a := &appliance{home: home, url: "http://" + addr, rnd: rand.New(rand.NewPCG(1, 2))}
	a.cmd = exec.Command(binary, "serve", "--set", "server.listen="+addr, "--set", "model.path="+model, "--set", "server.state_dir="+filepath.Join(home, "state"),
		"--set", "admin.socket="+filepath.Join(home, "admin.sock"), "--set", "log.level=warn")
	a.cmd.Stderr = os.Stderr
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if r, err := http.Get(a.url + "/ready"); err == nil {
			r.Body.Close()
			if r.StatusCode == 200 {
				return a, nil
			}
		}
	}
	a.stop()
	return nil, fmt.Errorf("%s was not ready within a minute", binary)
}

func (a *appliance) stop() {
	_ = a.cmd.Process.Signal(syscall.SIGTERM)
	_ = a.cmd.Wait()
	os.RemoveAll(a.home)
}

func (a *appliance) round() (f figures, err error) {
	one, err := a.ask(a.prompt(512), 2)
	if err != nil {
		return f, err
	}
	f[0] = 512 / one.first.Seconds()
	for k, n := range []int{1, 8, 16} {
		prompts := make([][]int32, n)
		for i := range prompts {
			prompts[i] = a.prompt(32)
		}
		runs, errs := make([]timing, n), make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Add(1)
			go func() {
				defer wg.Done()
				runs[i], errs[i] = a.ask(prompts[i], 96)
			}()
		}
		wg.Wait()
		tokens, from, to := 0, time.Time{}, time.Time{}
		for i, r := range runs {
			if errs[i] != nil {
				return f, errs[i]
			}
			tokens += r.tokens - 1
			if from.IsZero() || r.firstAt.Before(from) {
				from = r.firstAt
			}
			if r.lastAt.After(to) {
				to = r.lastAt
			}
		}
		f[k+1] = float64(tokens) / to.Sub(from).Seconds()
	}
	return f, nil
}

func (a *appliance) prompt(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = 100 + a.rnd.Int32N(40000)
	}
	return out
}

type timing struct {
	first           time.Duration
	firstAt, lastAt time.Time
	tokens          int
}

// ask streams an answer of n tokens.
func (a *appliance) ask(prompt []int32, n int) (t timing, err error) {
	body, err := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": n, "temperature": 0, "stream": true, "ignore_eos": true, "stream_options": map[string]bool{"include_usage": true}})
	if err != nil {
		return t, err
	}
	begun := time.Now()
	resp, err := http.Post(a.url+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return t, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		b, _ := io.ReadAll(resp.Body)
		return t, fmt.Errorf("%s: %s", resp.Status, b)
	}
	in := bufio.NewScanner(resp.Body)
	for in.Scan() {
		data, ok := strings.CutPrefix(in.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		if i := strings.Index(data, `"completion_tokens":`); i >= 0 {
			_, _ = fmt.Sscanf(data[i:], `"completion_tokens":%d`, &t.tokens)
			continue
		}
		t.lastAt = time.Now()
		if t.firstAt.IsZero() {
			t.firstAt = t.lastAt
			t.first = t.firstAt.Sub(begun)
		}
	}
	if t.tokens != n {
		return t, fmt.Errorf("%d tokens instead of %d", t.tokens, n)
	}
	return t, in.Err()
}
