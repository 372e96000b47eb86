package api

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"

	"tandem/daemon/ident"
)

// header gives the first value of name that is fit to be shown, logged and sent
// back: visible ASCII without spaces, at most 128 bytes. Else it is empty.
func header(h http.Header, name string) string {
	return clean(h.Get(name))
}

func clean(s string) string {
	if len(s) > 128 {
		return ""
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return ""
		}
	}
	return s
}

func newID() string { return fmt.Sprintf("req-%016x", rand.Uint64()) }

// ids makes the names of live requests unique.
type ids struct {
	mu   sync.Mutex
	live map[ident.Request]struct{} // guarded by mu
}

// take reserves want, or want with a number behind it if want is in use.
func (s *ids) take(want string) ident.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live == nil {
		s.live = map[ident.Request]struct{}{}
	}
	id := ident.Request(want)
	for n := 2; ; n++ {
		if _, used := s.live[id]; !used {
			s.live[id] = struct{}{}
			return id
		}
		id = ident.Request(want + "-" + strconv.Itoa(n))
	}
}

func (s *ids) drop(id ident.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, id)
}
