package dialog

import (
	"fmt"
	"unicode/utf8"
)

// maxStopBytes bounds the stop texts of an answer together.
const maxStopBytes = 1 << 16

// Stops finds the first of several stop texts in an answer, in time proportional to the
// answer: it is the automaton of Aho and Corasick ("Efficient string matching", 1975). It is
// immutable; nil finds nothing.
type Stops struct{ nodes []stopNode }

// stopNode is a prefix of stop texts: the longest one that the text read so far ends with.
type stopNode struct {
	child, sibling int32 // nodes, 0 for none
	fail           int32 // the longest shorter prefix that this one ends with
	depth          int32 // bytes of the prefix
	stop           int32 // bytes of the longest stop text that the prefix ends with, 0 for none
	b              byte  // its last
}

// stopBytes is the memory that a byte of a stop text takes.
const stopBytes = 24

// Bytes returns the memory that the automaton takes.
func (s *Stops) Bytes() int64 {
	if s == nil {
		return 0
	}
	return stopBytes * int64(cap(s.nodes))
}

// NewStops prepares stop texts. Empty ones, which occur everywhere, and those that are not
// UTF-8, which no text contains, are errors, as are more than 65,536 bytes together.
func NewStops(list []string) (*Stops, error) {
	size := 1
	for _, text := range list {
		switch size += len(text); {
		case text == "":
			return nil, fmt.Errorf("stop text: found an empty text")
		case !utf8.ValidString(text):
			return nil, fmt.Errorf("stop text: found %.40q, expected UTF-8", text)
		case size > maxStopBytes:
			return nil, fmt.Errorf("stop texts: found more than %d bytes", maxStopBytes)
		}
	}
	if len(list) == 0 {
		return nil, nil
	}
	s := &Stops{nodes: make([]stopNode, 1, size)}
	for _, text := range list {
		s.insert(text)
	}
	s.link()
	return s, nil
}

func (s *Stops) insert(text string) {
	at := int32(0)
	for i := range len(text) {
		next := s.next(at, text[i])
		if next == 0 {
			next = int32(len(s.nodes))
			s.nodes = append(s.nodes, stopNode{sibling: s.nodes[at].child, depth: int32(i + 1), b: text[i]})
			s.nodes[at].child = next
		}
		at = next
	}
	s.nodes[at].stop = s.nodes[at].depth
}

// link finds the failures of all nodes, in order of depth.
func (s *Stops) link() {
	todo := []int32{0}
	for len(todo) > 0 {
		at := todo[0]
		todo = todo[1:]
		for child := s.nodes[at].child; child != 0; child = s.nodes[child].sibling {
			n := &s.nodes[child]
			if at != 0 {
				n.fail = s.step(s.nodes[at].fail, n.b)
			}
			if n.stop == 0 {
				n.stop = s.nodes[n.fail].stop
			}
			todo = append(todo, child)
		}
	}
}

// next returns the child of a node for a byte; 0 if it has none.
func (s *Stops) next(at int32, b byte) int32 {
	for child := s.nodes[at].child; child != 0; child = s.nodes[child].sibling {
		if s.nodes[child].b == b {
			return child
		}
	}
	return 0
}

// step returns the node after another byte.
func (s *Stops) step(at int32, b byte) int32 {
	for {
		if next := s.next(at, b); next != 0 || at == 0 {
			return next
		}
		at = s.nodes[at].fail
	}
}
