package engine

import (
	"container/list"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/lukv/lukv/model"
)

// store keeps sessions of prompts that were read in memory, the least used to go first.
type store struct {
	limit, bytes int64
	windowed     bool                         // truncating reaches back only so far
	trees        map[string]*prefixes[*entry] // by label
	used         list.List                    // of *entry, the most recently used last
	changed      func(PrefixEvent)
}

// PrefixEvent says what happened to the cache of a prompt.
type PrefixEvent struct {
	Tokens  []int32 // of the prompt; not to be changed
	Context int     // up to where some of them were compressed; 0: nowhere
	Label   string  // digest of all else that the cache depends on: it serves no request with another
	Kept    bool    // from now on; false: no longer
}

// entry is a session that has read a prompt. It serves every prompt that begins with
// the same tokens, up to where they differ; a compressed one only prompts with exactly
// its context, since what was evicted depends on all of it.
type entry struct {
	label   string
	context int // tokens that were compressed
	tokens  []int32
	session *model.Session
	bytes   int64
	at      *list.Element
}

// leastShared is the number of tokens from which on a prefix is worth its fork.
const leastShared = 16

// label is a digest of all but the tokens that decides a cache's bits: the model, its
// precision, the cache's type, whose arithmetic it is, how the context is compressed,
// where it begins and ends; and of the salt. The instruction set of the processor is not among it,
// as it changes no bit.
func (e *Engine) label(s *model.Session, r *Request) string {
	key := struct {
		Format, Model, Precision, Cache, Device string
		DeviceLayers, Context                   int
		Protected                               int `json:",omitempty"`
		Policy                                  any
		Salt                                    string
	}{
		Format: prefixFormat, Model: e.m.ID(), Precision: string(e.m.Precision()), Cache: s.Cache().Options().Type.String(),
		DeviceLayers: e.m.DeviceLayers(), Context: r.Context, Protected: r.Protected, Salt: hex.EncodeToString([]byte(r.Salt)),
	}
	if d := e.m.Device(); d != nil {
		i := d.Info()
		key.Device = fmt.Sprint(i.Name, " ", i.Driver, " ", i.API, " ", i.Features)
	}
	if r.Context > 0 {
		key.Policy = s.Policy()
	}
	text, err := json.Marshal(key)
	if err != nil {
		panic("engine: " + err.Error()) // a policy that was compiled can be written
	}
	sum := sha256.Sum256(text)
	return prefixFormat + hex.EncodeToString(sum[:])
}

// prefixFormat begins the labels; another number is for another arithmetic.
const prefixFormat = "prefix 1 "

// usable is how many of the n tokens that a prompt and one of so many tokens that is kept
// under a label begin alike with the request can take over; 0: none.
func (j *job) usable(label string, n, length int, logits bool) int {
	r := &j.req
	if label == j.front {
		if n = min(n, r.Protected); n < leastShared {
			return 0
		}
		return n
	}
	if r.Echo {
		n = min(n, r.Context) // logits are wanted of everything behind it
	}
	if n == len(r.Prompt) && !r.PromptOnly && (n < length || !logits) {
		n-- // the last token gives the logits
	}
	if n < max(r.Context, leastShared) {
		return 0
	}
	return n
}

// find returns a session that has read the longest beginning of the request's prompt
// that is kept, and how much that is; nil if there is none worth it. It belongs to the
// caller.
func (st *store) find(j *job) (*model.Session, int) {
	if s, n := st.findUnder(j, j.label); s != nil || j.front == "" {
		return s, n
	}
	return st.findUnder(j, j.front)
}

func (st *store) findUnder(j *job, label string) (*model.Session, int) {
	tree := st.trees[label]
	if tree == nil {
		return nil, 0
	}
	n, alike, whole, within := tree.longest(j.req.Prompt)
	if s, n := st.take(j, alike, n); s != nil {
		return s, n
	}
	if whole >= 0 { // where windows and renumbered positions cannot go back
		return st.take(j, within, whole)
	}
	return nil, 0
}

// take forks a session for a request that has n tokens alike.
func (st *store) take(j *job, en *entry, n int) (*model.Session, int) {
	if n = j.usable(en.label, n, len(en.tokens), en.session.Logits() != nil); n == 0 {
		return nil, 0
	}
	s := forkAt(en.session, n, len(en.tokens))
	if s == nil {
		return nil, 0
	}
	st.used.MoveToBack(en.at)
	return s, n
}

// forkAt forks a session of so many tokens that ends behind n of them, nil if that cannot
// be.
func forkAt(from *model.Session, n, tokens int) *model.Session {
	s, err := from.Fork()
	if err != nil {
		return nil
	}
	if n == tokens {
		return s
	}
	if s.Len() == tokens { // or positions are renumbered, and n is none
		if err = s.Truncate(n); err == nil { // or windows have moved on
			return s
		}
	}
	s.Close()
	return nil
}

// common returns how many tokens a and b begin with alike.
func common(a, b []int32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// keepable reports whether the session of a request whose prompt is read is worth
// keeping. What compresses while decoding is not: its state depends on what was a prompt
// and what an answer.
func (j *job) keepable() bool {
	return len(j.req.Prompt) >= leastShared && !j.countsPasses()
}

// keep takes a fork of the session of a request whose prompt is read, if it fits into
// room and limit.
func (st *store) keep(j *job, room int64) {
	if j.keepable() && j.cached < len(j.req.Prompt) {
		st.add(j.label, j.req.Context, j.req.Prompt, j.session, room)
	}
}

// keepFront keeps the protected tokens of a prompt, which the session has just read, for
// prompts that go on with something else.
func (j *job) keepFront() {
	if n := j.req.Protected; n >= leastShared && j.cached < n {
		j.e.kept.add(j.front, 0, slices.Clone(j.req.Prompt[:n]), j.session, j.e.room())
		j.e.stats.kept.Store(j.e.kept.bytes)
	}
}

// add takes a fork of a session that has read the tokens.
func (st *store) add(label string, context int, tokens []int32, session *model.Session, room int64) {
	bytes := session.Stats().CacheBytes
	if bytes > min(st.limit, room) {
		return
	}
	s, err := session.Fork()
	if err != nil {
		return
	}
	tree := st.trees[label]
	if tree == nil {
		if st.trees == nil {
			st.trees = map[string]*prefixes[*entry]{}
		}
		tree = new(prefixes[*entry])
		st.trees[label] = tree
	}
	en := &entry{label: label, context: context, tokens: tokens, session: s, bytes: bytes}
	st.changed(PrefixEvent{tokens, context, label, true}) // before what it replaces goes: nothing is missing in between
	for _, old := range tree.along(tokens) {
		if superseded(len(old.tokens), len(tokens), context, st.windowed) {
			st.remove(old)
		}
	}
	if st.trees[label] == nil {
		st.trees[label] = tree // it was removed with its last entry
	}
	tree.put(tokens, en)
	en.at = st.used.PushBack(en)
	st.bytes += bytes
	st.shrink(min(st.limit, room))
}

// superseded reports whether what is kept of a beginning of n tokens has nothing that
// what is kept of all has not. Where windows forbid going back it has; the end of a
// compressed context stays, since nobody can go back behind it.
func superseded(n, all, context int, windowed bool) bool {
	return n == all || !windowed && n != context
}

// shrink forgets until what is kept takes at most n bytes.
func (st *store) shrink(n int64) {
	for st.bytes > n && st.used.Len() > 0 {
		st.remove(st.used.Front().Value.(*entry))
	}
}

func (st *store) remove(en *entry) {
	tree := st.trees[en.label]
	tree.remove(en.tokens)
	if len(tree.root.children) == 0 {
		delete(st.trees, en.label)
	}
	st.used.Remove(en.at)
	en.session.Close()
	st.bytes -= en.bytes
	st.changed(PrefixEvent{en.tokens, en.context, en.label, false})
}

// forget removes what begins with the given tokens.
func (st *store) forget(label string, tokens []int32) {
	if tree := st.trees[label]; tree != nil {
		for _, en := range tree.behind(tokens) {
			st.remove(en)
		}
	}
}

func (st *store) close() { st.shrink(-1) }
