package model

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
)

// ErrWrongModel says that a saved session belongs to another model.
var ErrWrongModel = errors.New("saved session belongs to another model")

// Keys of a saved session's metadata, beside those of the cache itself.
const (
	metaModel     = "model"
	metaDigest    = "digest"    // of the model, see Model.Digest; absent if it was not made
	metaSession   = "session"   // JSON of savedSession
	metaPrecision = "precision" // for information
	metaLogits    = "logits"    // base64 of little-endian float32, absent if there are none
)

// savedSession is what a session is beside its cache.
type savedSession struct {
	Version       int          `json:"version"`
	Position      int          `json:"position"`
	Tokens        []int32      `json:"tokens"`
	Pending       []int32      `json:"pending,omitempty"`
	ContextTokens int          `json:"context_tokens,omitempty"`
	Renumbered    bool         `json:"renumbered,omitempty"`
	Policy        *lukv.Policy `json:"policy,omitempty"` // metric, allocator, ratio and profile identity
}

const savedVersion = 1

// Save writes the session to one file, with everything that LoadSession needs
// to go on: the cache with its per-head lengths and positions, the tokens, the
// last logits, the policy and the identity of the model. The file replaces an
// older one only when it is complete; only its owner may read it.
//
// A session that compresses while decoding with accumulated attention (h2o,
// observed) cannot be saved: the accumulators have no place in the file.
func (s *Session) Save(path string) error {
	if err := s.enter(); err != nil {
		return fmt.Errorf("save session: %w", err)
	}
	defer s.leave()
	if err := s.ready(); err != nil {
		return fmt.Errorf("save session: %w", err)
	}
	state := savedSession{
		Version: savedVersion, Position: s.pos, Tokens: s.tokens, Pending: s.pending,
		ContextTokens: s.stats.ContextTokens, Renumbered: s.renumbered,
	}
	if c := s.comp; c != nil {
		if d := c.plan.Decoding(); d != nil && d.Needs().Sums {
			return fmt.Errorf("save session: its compression while decoding (%s) depends on accumulated attention, which a file does not hold", d.Config().Mode)
		}
	}
	state.Policy = s.Policy()
	text, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("save session: %w", err)
	}
	id := s.m.ID()
	if id == "" {
		return fmt.Errorf("save session: model: %w", ErrClosed)
	}
	meta := map[string]string{
		metaModel: id, metaSession: string(text), metaPrecision: string(s.m.precision),
	}
	if d := s.m.digest.Load(); d != nil {
		meta[metaDigest] = *d
	}
	if s.hasLogits {
		raw := make([]byte, 4*len(s.logits))
		for i, v := range s.logits {
			binary.LittleEndian.PutUint32(raw[4*i:], math.Float32bits(v))
		}
		meta[metaLogits] = base64.StdEncoding.EncodeToString(raw)
	}
	if err := s.cache.SaveFile(path, meta); err != nil {
		return fmt.Errorf("save session: %w", err)
	}
	return nil
}

// LoadSession returns the session that Save wrote to path. o.CacheType and
// o.Compression may be left out: the cache keeps its element type, and the
// saved policy goes on compressing while decoding if it did (a policy that
// needs a profile has to be given again). A file of another model is
// ErrWrongModel; a damaged one an error that says so.
func (m *Model) LoadSession(path string, o SessionOptions) (*Session, error) {
	s, err := m.loadSession(path, o)
	if err != nil {
		return nil, fmt.Errorf("load session: %w", err)
	}
	return s, nil
}

func (m *Model) loadSession(path string, o SessionOptions) (*Session, error) {
	cache, meta, err := kvcache.LoadFile(path, kvcache.Options{
		MaxBytes: o.MaxCacheBytes, Account: m.memory, PageEntries: o.PageEntries, Device: m.Device(), DeviceLayers: m.DeviceLayers(),
	})
	if err != nil {
		return nil, err
	}
	s, err := m.restore(cache, meta, o)
	if err != nil {
		cache.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// restore makes a session of a loaded cache and its metadata.
func (m *Model) restore(cache *kvcache.Cache, meta map[string]string, o SessionOptions) (*Session, error) {
	if id, ok := meta[metaModel]; !ok {
		return nil, errors.New("the file holds a cache but no session")
	} else if have := m.ID(); have == "" {
		return nil, fmt.Errorf("model: %w", ErrClosed)
	} else if id != have {
		return nil, fmt.Errorf("%w: made with %s, this is %s", ErrWrongModel, id, have)
	}
	if have := m.digest.Load(); have != nil && meta[metaDigest] != "" && meta[metaDigest] != *have {
		return nil, fmt.Errorf("%w: made with weights %s, these are %s", ErrWrongModel, meta[metaDigest], *have)
	}
	var state savedSession
	if err := json.Unmarshal([]byte(meta[metaSession]), &state); err != nil {
		return nil, fmt.Errorf("session data: %w", err)
	}
	if state.Version != savedVersion {
		return nil, fmt.Errorf("session data of version %d, want %d", state.Version, savedVersion)
	}
	have := cache.Options()
	if o.CacheType != 0 && o.CacheType != have.Type {
		return nil, fmt.Errorf("cache of type %v, want %v", have.Type, o.CacheType)
	}
	o.CacheType = have.Type
	if o.Compression == nil && state.Policy != nil && state.Policy.Decode.Enabled() {
		o.Compression = state.Policy
	}
	s, err := m.newSession(o)
	if err != nil {
		return nil, err
	}
	if want := s.cacheOptions(); have.Layers != want.Layers || have.KVHeads != want.KVHeads || have.HeadDim != want.HeadDim {
		return nil, fmt.Errorf("cache of %d layers of %d KV heads of %d, the model has %d of %d of %d",
			have.Layers, have.KVHeads, have.HeadDim, want.Layers, want.KVHeads, want.HeadDim)
	}
	for at, w := range m.cfg.Windows {
		if have.Windows == nil && w > 0 || have.Windows != nil && have.Windows[at] != w {
			return nil, fmt.Errorf("cache with other sliding windows: layer %d has %d tokens in the model", at, w)
		}
	}
	if err := s.adopt(cache, &state); err != nil {
		return nil, err
	}
	if text, ok := meta[metaLogits]; ok {
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(raw) != 4*m.cfg.Vocab {
			return nil, errors.New("session data: the logits are damaged")
		}
		s.logits = make([]float32, m.cfg.Vocab)
		for i := range s.logits {
			s.logits[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
		s.hasLogits = true
	}
	if err := s.takeTokens(0); err != nil {
		return nil, err
	}
	return s, nil
}

// adopt takes over a loaded cache and the saved state, after checking that
// they belong together.
func (s *Session) adopt(cache *kvcache.Cache, state *savedSession) error {
	switch {
	case state.Position < 0 || state.Position > s.opts.MaxTokens:
		return fmt.Errorf("%w: the session stands at %d tokens, the limit is %d", ErrContextFull, state.Position, s.opts.MaxTokens)
	case len(state.Tokens) != state.Position && !state.Renumbered:
		return fmt.Errorf("session data: %d tokens at position %d", len(state.Tokens), state.Position)
	}
	for i, t := range slices.Concat(state.Tokens, state.Pending) {
		if t < 0 || int(t) >= s.m.cfg.Vocab {
			return fmt.Errorf("session data: token %d is %d, the vocabulary has %d", i, t, s.m.cfg.Vocab)
		}
	}
	for at := range s.m.cfg.Layers {
		for h := range s.m.cfg.KVHeads {
			if last := cache.LastPosition(at, h); int(last) >= state.Position {
				return fmt.Errorf("session data: layer %d head %d holds position %d, the session stands at %d", at, h, last, state.Position)
			}
		}
	}
	s.cache, s.pos, s.tokens, s.pending = cache, state.Position, state.Tokens, state.Pending
	s.stats.ContextTokens, s.saved = state.ContextTokens, state.Policy
	s.renumbered = state.Renumbered
	return nil
}
