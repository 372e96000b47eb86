package token

import "strings"

// trie finds whole-text tokens. Its first node is the root.
type trie struct {
	nodes []trieNode
	first [256]bool // bytes with which a text begins
	only  byte      // the one such byte, if single
	count int       // how many such bytes
}

type trieNode struct {
	id    int32 // token that ends here, or -1
	bytes []byte
	next  []int32 // next[i] follows bytes[i]
}

func (n *trieNode) child(b byte) int32 {
	for i, c := range n.bytes {
		if c == b {
			return n.next[i]
		}
	}
	return -1
}

// add enters a text that is not empty. Of equal texts the first stays.
func (t *trie) add(text string, id int32) {
	if t.nodes == nil {
		t.nodes = []trieNode{{id: -1}}
	}
	if b := text[0]; !t.first[b] {
		t.first[b] = true
		t.only = b
		t.count++
	}
	at := int32(0)
	for i := range len(text) {
		next := t.nodes[at].child(text[i])
		if next < 0 {
			next = int32(len(t.nodes))
			t.nodes[at].bytes = append(t.nodes[at].bytes, text[i])
			t.nodes[at].next = append(t.nodes[at].next, next)
			t.nodes = append(t.nodes, trieNode{id: -1})
		}
		at = next
	}
	if t.nodes[at].id < 0 {
		t.nodes[at].id = id
	}
}

// find gives the first place at which a token stands, and the longest there; its
// id is -1 if there is none.
func (t *trie) find(text string) (start, end int, id int32) {
	if t.count == 0 {
		return 0, 0, -1
	}
	for i := 0; i < len(text); i++ {
		if t.count == 1 {
			skip := strings.IndexByte(text[i:], t.only)
			if skip < 0 {
				break
			}
			i += skip
		} else if !t.first[text[i]] {
			continue
		}
		id, at := int32(-1), int32(0)
		for j := i; j < len(text); j++ {
			if at = t.nodes[at].child(text[j]); at < 0 {
				break
			}
			if found := t.nodes[at].id; found >= 0 {
				id, end = found, j+1
			}
		}
		if id >= 0 {
			return i, end, id
		}
	}
	return 0, 0, -1
}
