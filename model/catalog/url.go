package catalog

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// Limits of fetching by address.
const (
	maxRedirects = 5
	maxTries     = 100 // connections for one file
	maxBarren    = 5   // connections in a row that brought nothing new
	firstPause   = 500 * time.Millisecond
	maxPause     = 30 * time.Second
	stallLimit   = time.Minute // without a byte
)

// pullURL brings a GGUF file from a web address. What has arrived so far is
// kept in a file .NAME.part, and what it is a part of in .NAME.part.json, so
// that the next try, or the next run, asks for the rest only; if the server's
// file is no longer the same one, it begins anew.
func pullURL(ctx context.Context, address, dir string, o Options) (Result, error) {
	u, err := url.Parse(address)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return Result{}, errors.New("the address is not one of http or https")
	}
	file, err := fileName(u, o.Name)
	if err != nil {
		return Result{}, err
	}
	if e, ok := byFile(file); ok && e.SHA256 != o.SHA256 {
		return Result{}, fmt.Errorf("%s is the file of the catalogue's model %s; give this one another name", file, e.Name)
	}
	unlock, err := openFolder(ctx, dir, file, o.Progress)
	if err != nil {
		return Result{}, err
	}
	defer unlock()

	res := Result{Name: strings.TrimSuffix(file, filepath.Ext(file)), Path: filepath.Join(dir, file)}
	if _, err := os.Lstat(res.Path); err == nil {
		res.Already = true
		if res.SHA256, res.Bytes, err = sum(ctx, res.Path, o.Progress); err != nil {
			return Result{}, err
		}
		if o.SHA256 != "" && o.SHA256 != res.SHA256 {
			return Result{}, fmt.Errorf("%s is there already, with the SHA-256 %s instead of %s; remove it or give the new one another name", res.Path, res.SHA256, o.SHA256)
		}
		return res, nil
	}

	f := &fetch{u: u, shown: show(u), dir: dir, part: filepath.Join(dir, "."+file+".part"), o: o, client: client(o.Client)}
	defer f.client.CloseIdleConnections()
	if err := f.run(ctx); err != nil {
		return Result{}, folderError(dir, err)
	}
	if res.SHA256, res.Bytes, err = sum(ctx, f.part, o.Progress); err != nil {
		return Result{}, err
	}
	if o.SHA256 != "" && o.SHA256 != res.SHA256 {
		f.discard()
		return Result{}, fmt.Errorf("%s is not the file that was wanted: expected SHA-256 %s, got %s (%d bytes); it was removed", f.shown, o.SHA256, res.SHA256, res.Bytes)
	}
	if err := settle(f.part, res.Path); err != nil {
		return Result{}, folderError(dir, err)
	}
	os.Remove(f.part + ".json")
	return res, nil
}

// fileName is the name in the models folder: wish, or the last part of the
// address with everything odd replaced.
func fileName(u *url.URL, wish string) (string, error) {
	name := wish
	if name == "" {
		name = strings.TrimLeft(strings.Map(func(r rune) rune {
			if safeRune(r) {
				return r
			}
			return '_'
		}, path.Base(u.Path)), "._-")
		if len(name) > 128 {
			name = name[len(name)-128:]
			name = strings.TrimLeft(name, "._-")
		}
		if name == "" {
			return "", errors.New("the address does not end in the name of a file; give one")
		}
	}
	if !isGGUF(name) {
		name += ".gguf"
	}
	if !cleanName(name) {
		return "", fmt.Errorf("%q is no name for a file: letters, digits and . - _ + only", name)
	}
	return name, nil
}

// show is an address without what may be secret in it.
func show(u *url.URL) string { return u.Scheme + "://" + u.Host + u.EscapedPath() }

// client is the given client, or one with limits, that follows few redirects,
// none from https to http, and tells no server what the last address was.
func client(given *http.Client) *http.Client {
	c := http.Client{Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		DisableKeepAlives:     true, // one file is one answer
		TLSHandshakeTimeout:   15 * time.Second,
		ResponseHeaderTimeout: time.Minute,
	}}
	if given != nil {
		c = *given
	}
	c.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		switch {
		case len(via) > maxRedirects:
			return permanent{fmt.Errorf("more than %d redirects", maxRedirects)}
		case req.URL.Scheme != "http" && req.URL.Scheme != "https":
			return permanent{fmt.Errorf("a redirect to %q, which is no web address", req.URL.Scheme)}
		case via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme == "http":
			return permanent{errors.New("a redirect from https to http")}
		}
		req.Header.Del("Referer")
		return nil
	}
	return &c
}

// permanent is an error that another try would not change.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

var errAnew = errors.New("the server's file changed; beginning anew")

// partial says what the part file is a part of.
type partial struct {
	Source    string `json:"source"`    // digest of the address, which may hold secrets
	Validator string `json:"validator"` // a strong ETag, or a Last-Modified; "" if the server gave none
	Total     int64  `json:"total"`     // bytes of the whole file; 0 if unknown
}

// fetch is one file on its way.
type fetch struct {
	u      *url.URL
	shown  string
	dir    string
	part   string
	o      Options
	client *http.Client

	meta partial
	off  int64 // bytes that have arrived
}

// run brings the part file to its end. It returns nil when the file is whole.
func (f *fetch) run(ctx context.Context) error {
	f.resume()
	pause, barren, best := firstPause, 0, f.off
	if f.o.retry > 0 {
		pause = f.o.retry
	}
	first := pause
	for try := 1; ; try++ {
		if f.meta.Total > 0 && f.off == f.meta.Total {
			return nil
		}
		wait, err := f.try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var p permanent
		if errors.As(err, &p) {
			return fmt.Errorf("%s: %w", f.shown, p.error)
		}
		switch {
		case errors.Is(err, errAnew):
			best = 0
		case f.off > best:
			best, barren, pause = f.off, 0, first
		default:
			barren++
		}
		if barren >= maxBarren || try >= maxTries {
			return fmt.Errorf("%s: given up after %d tries, with %d bytes so far: %w", f.shown, try, f.off, err)
		}
		f.o.Progress(Progress{Phase: "waiting", Note: err.Error(), Done: f.off, Total: f.meta.Total})
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(max(min(wait, time.Minute), pause)):
		}
		pause = min(2*pause, maxPause)
	}
}

// resume finds out what an earlier run left behind.
func (f *fetch) resume() {
	source := sha256.Sum256([]byte(f.u.String()))
	fresh := partial{Source: hex.EncodeToString(source[:])}
	f.meta = fresh
	var old partial
	b, err := readSmall(f.part+".json", 4096)
	if err != nil || json.Unmarshal(b, &old) != nil || old.Source != fresh.Source || old.Validator == "" || old.Total < 0 {
		return
	}
	info, err := os.Lstat(f.part)
	if err != nil || !info.Mode().IsRegular() || (old.Total > 0 && info.Size() > old.Total) {
		return
	}
	f.meta, f.off = old, info.Size()
}

func readSmall(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

func (f *fetch) discard() {
	os.Remove(f.part)
	os.Remove(f.part + ".json")
}

// try makes one connection and takes what it brings. wait is what the server
// asked for before the next.
func (f *fetch) try(ctx context.Context) (wait time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.u.String(), nil)
	if err != nil {
		return 0, permanent{errors.New("no request can be made of this address")}
	}
	if f.meta.Validator == "" {
		f.off = 0 // nothing says that the rest would be of the same file
	}
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", "tandem")
	if f.off > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", f.off))
		req.Header.Set("If-Range", f.meta.Validator)
	}
	resp, err := f.client.Do(req)
	if err != nil {
		var ue *url.Error // its text holds the whole address
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return 0, err
	}
	defer resp.Body.Close()
	d := judge(resp, f.off, f.meta)
	switch {
	case d.err != nil:
		return d.wait, d.err
	case d.whole:
		f.meta.Total = f.off
		return 0, nil
	case d.anew:
		f.off, f.meta.Validator, f.meta.Total = 0, "", 0
		return 0, errAnew
	}
	if d.from == 0 {
		f.off, f.meta.Validator, f.meta.Total = 0, validator(resp.Header), d.total
	}
	if !d.framed && f.o.SHA256 == "" {
		return 0, permanent{errors.New("the server does not say how long the file is, so nobody could tell whether it is whole; give its SHA-256")}
	}
	if d.total > 0 {
		if err := checkRoom(f.dir, d.total-f.off); err != nil {
			return 0, permanent{err}
		}
	}
	// A connection on which nothing arrives is cut.
	stall := time.AfterFunc(stallLimit, cancel)
	defer stall.Stop()
	body := bufio.NewReaderSize(&alive{resp.Body, stall}, 256<<10)
	if f.off == 0 {
		head, err := body.Peek(4)
		if !bytes.Equal(head, []byte("GGUF")) {
			if err != nil && !errors.Is(err, io.EOF) {
				return 0, err
			}
			return 0, permanent{fmt.Errorf("what the server sent is not a GGUF file: it begins with %q and calls itself %q", head, clip(resp.Header.Get("Content-Type")))}
		}
	}
	return 0, f.take(ctx, body)
}

// take appends the body to the part file.
func (f *fetch) take(ctx context.Context, body io.Reader) error {
	flags := os.O_WRONLY | os.O_CREATE
	if f.off == 0 {
		flags |= os.O_TRUNC
		os.Remove(f.part) // whatever it was, a link included
	}
	out, err := os.OpenFile(f.part, flags, 0o600)
	if err != nil {
		return permanent{err}
	}
	defer out.Close()
	if f.off == 0 {
		b, _ := json.Marshal(f.meta)
		if err := os.WriteFile(f.part+".json", b, 0o600); err != nil {
			return permanent{err}
		}
	}
	if _, err := out.Seek(f.off, io.SeekStart); err != nil {
		return permanent{err}
	}
	m := &meter{ctx: ctx, r: body, phase: "fetching", done: f.off, total: f.meta.Total, tell: f.o.Progress}
	src := io.Reader(m)
	if f.meta.Total > 0 {
		src = io.LimitReader(m, f.meta.Total-f.off+1)
	}
	w := &written{w: out}
	n, err := io.Copy(w, src)
	f.off += n
	switch {
	case w.err != nil:
		return permanent{w.err}
	case err != nil:
		return fmt.Errorf("the connection was cut: %w", err)
	case f.meta.Total > 0 && f.off > f.meta.Total:
		f.discard()
		return permanent{fmt.Errorf("the server sent more than the %d bytes it announced", f.meta.Total)}
	case f.meta.Total > 0 && f.off < f.meta.Total:
		return fmt.Errorf("the connection ended after %d of %d bytes", f.off, f.meta.Total)
	}
	if err := out.Close(); err != nil {
		return permanent{err}
	}
	return nil
}

// alive puts the end of a stalled connection off as long as bytes arrive.
type alive struct {
	r io.Reader
	t *time.Timer
}

func (a *alive) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	if n > 0 {
		a.t.Reset(stallLimit)
	}
	return n, err
}

// written remembers that it was writing that failed, not reading.
type written struct {
	w   io.Writer
	err error
}

func (w *written) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	w.err = err
	return n, err
}
