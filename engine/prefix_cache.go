package engine

import (
	"container/list"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/model"
)

// prefixCache keeps sessions of prompts in memory after their prefill and drops the least
// recently used first.
type prefixCache struct {
	limit, bytes int64
	vocab        int
	windowed     bool                          // sessions can be truncated only so far
	trees        map[string]*radixTree[*entry] // by label
	used         list.List                     // of *entry, the most recently used last
	changed      func(PrefixEvent)
}

// PrefixEvent reports that a prompt was added to the prefix cache or dropped from it.
type PrefixEvent struct {
	Tokens  []int32 // of the prompt; must not be changed
	Context int     // end of the tokens that were compressed; 0: none were
	Label   string  // digest of everything else that the entry depends on: it serves only requests with an equal one
	Cached  bool    // in the prefix cache from now on; false: no longer
}

// entry is a session after the prefill of a prompt. It serves every prompt that begins with the
// same tokens, up to where they differ; a compressed one serves only prompts with exactly
// its context, since what was evicted depends on all of it.
type entry struct {
	label   string
	context int // tokens that were compressed
	tokens  []int32
	session *model.Session
	bytes   int64 // of its cache, logits and tokens
	at      *list.Element
}

// leastShared is the fewest tokens for which a prefix is worth a fork.
const leastShared = 16

// label returns a digest of everything other than the tokens that decides a cache's bits:
// the model, its precision, the cache's type, the device and its layers, how the context is
// compressed, where it begins and ends; and of the salt. The processor's instruction set is
// not included, as it changes no bits.
func (e *Engine) label(s *model.Session, r *Request) string {
	key := struct {
		Format, Model, Precision, Cache, Device string
		DeviceLayers, Context                   int
		Protected                               int `json:",omitempty"`
		Policy                                  any
		Salt                                    string
	}{
		Format: prefixFormat, Model: e.m.ID(), Precision: string(e.m.Precision()), Cache: cacheLabel(s.Cache().Options()),
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
		panic("engine: " + err.Error()) // a compiled policy can be written as JSON
	}
	sum := sha256.Sum256(text)
	return prefixFormat + hex.EncodeToString(sum[:])
}

// cacheLabel names the types of a cache. A model decides which layers have wide keys.
func cacheLabel(o kvcache.Options) string {
	if o.Values == 0 || o.Values == o.Type {
		return o.Type.String()
	}
	return kvcache.TypeName(o.Type, o.Values)
}

// prefixFormat begins every label; its number changes whenever the arithmetic does.
const prefixFormat = "prefix 1 "

// usable returns how many tokens the request can reuse of a cached prompt that has the given
// label and length, and shares its first n tokens with the request's; 0: none. logits reports
// whether the entry has the logits after its last token: without them it cannot begin an answer.
func (j *job) usable(label string, n, length int, logits bool) int {
	r := &j.req
	if r.Hidden != nil { // wanted of every token
		return 0
	}
	if label == j.front {
		if n = min(n, r.Protected); n < leastShared {
			return 0
		}
		return n
	}
	if r.Echo {
		n = min(n, r.Context) // logits are wanted for everything after it
	}
	if n == len(r.Prompt) && !r.PromptOnly && (n < length || !logits) {
		n-- // the last token must be computed for its logits
	}
	if n < max(r.Context, leastShared) {
		return 0
	}
	return n
}

// find returns a session after the longest cached prefix of the request's prompt, and that
// prefix's length; nil if no prefix is worth a fork. The session belongs to the caller.
func (st *prefixCache) find(j *job) (*model.Session, int) {
	if s, n := st.findUnder(j, j.label); s != nil || j.front == "" {
		return s, n
	}
	return st.findUnder(j, j.front)
}

func (st *prefixCache) findUnder(j *job, label string) (*model.Session, int) {
	tree := st.trees[label]
	if tree == nil {
		return nil, 0
	}
	n, alike, whole, within := tree.longest(j.req.Prompt)
	if s, n := st.take(j, alike, n); s != nil {
		return s, n
	}
	if whole >= 0 { // when windows or renumbered positions prevent going back
		return st.take(j, within, whole)
	}
	return nil, 0
}

// take forks a cached session for a request that shares its first n tokens.
func (st *prefixCache) take(j *job, en *entry, n int) (*model.Session, int) {
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

// forkAt forks a session of the given number of tokens and truncates the fork to n of them;
// nil if that is not possible.
func forkAt(from *model.Session, n, tokens int) *model.Session {
	s, err := from.Fork()
	if err != nil {
		return nil
	}
	if n == tokens {
		return s
	}
	if s.Len() == tokens { // otherwise positions are renumbered, and n is not one of them
		if err = s.Truncate(n); err == nil { // fails if windows have moved on
			return s
		}
	}
	s.Close()
	return nil
}

// common returns the length of the longest common prefix of a and b.
func common(a, b []int32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// cacheable reports whether the session of a request after its prefill belongs in the prefix
// cache. One that compresses while decoding is not: its state depends on where the prompt
// ended and the answer began.
func (j *job) cacheable() bool {
	return len(j.req.Prompt) >= leastShared && !j.countsPasses() && j.req.Hidden == nil
}

// keep adds a fork of the session of a request after its prefill, if it fits into the room
// and the limit.
func (st *prefixCache) keep(j *job, room int64) {
	if j.cacheable() && j.cached < len(j.req.Prompt) {
		st.add(j.label, j.req.Context, j.req.Prompt, j.session, room)
	}
}

// keepFront adds the protected tokens of a prompt, whose prefill has just ended, for prompts
// that continue differently.
func (j *job) keepFront() {
	if n := j.req.Protected; n >= leastShared && j.cached < n {
		j.e.cache.add(j.front, 0, slices.Clone(j.req.Prompt[:n]), j.session, j.e.room())
		j.e.stats.cached.Store(j.e.cache.bytes)
	}
}

// add adds a fork of a session after the given tokens, if it fits into the room and the limit.
func (st *prefixCache) add(label string, context int, tokens []int32, session *model.Session, room int64) {
	bytes := session.Stats().CacheBytes + 4*int64(st.vocab+2*len(tokens)) // the session has the tokens, too
	if bytes > min(st.limit, room) {
		return
	}
	s, err := session.Fork()
	if err != nil {
		return
	}
	en := &entry{label: label, context: context, tokens: tokens, session: s, bytes: bytes}
	st.changed(PrefixEvent{tokens, context, label, true}) // before what it replaces is dropped: nothing is missing in between
	if tree := st.trees[label]; tree != nil {
		for _, old := range tree.along(tokens) {
			if superseded(len(old.tokens), len(tokens), context, st.windowed) {
				st.remove(old)
			}
		}
	}
	if st.trees[label] == nil { // there was none, or it went with its last entry
		st.trees[label] = new(radixTree[*entry])
	}
	st.trees[label].put(tokens, en)
	en.at = st.used.PushBack(en)
	st.bytes += bytes
	st.shrink(min(st.limit, room))
}

// superseded reports whether a cached prefix of n tokens serves no request that the cached
// prompt of all tokens does not serve. Where windows prevent truncation it does, and the end
// of a compressed context stays, since no session can be truncated past it.
func superseded(n, all, context int, windowed bool) bool {
	return n == all || !windowed && n != context
}

// shrink drops the least recently used sessions until the rest take at most n bytes.
func (st *prefixCache) shrink(n int64) {
	for st.bytes > n && st.used.Len() > 0 {
		st.remove(st.used.Front().Value.(*entry))
	}
}

func (st *prefixCache) remove(en *entry) {
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

// forget removes the sessions of prompts that begin with the given tokens.
func (st *prefixCache) forget(label string, tokens []int32) {
	if tree := st.trees[label]; tree != nil {
		for _, en := range tree.extensions(tokens) {
			st.remove(en)
		}
	}
}

func (st *prefixCache) close() { st.shrink(-1) }
