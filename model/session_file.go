package model

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"

	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// ErrWrongModel says that a saved session belongs to another model.
var ErrWrongModel = errors.New("saved session belongs to another model")

// Keys of a saved session's metadata, in addition to those of the cache itself.
const (
	metaModel     = "model"
	metaDigest    = "digest"    // of the model, see Model.Digest; absent if it was not made
	metaSession   = "session"   // JSON of savedSession
	metaPrecision = "precision" // of the computation that the entries come from
	metaLabel     = "label"     // the caller's, absent if there is none
	metaLogits    = "logits"    // base64 of little-endian float32, absent if there are none
)

// savedSession is what a session consists of besides its cache.
type savedSession struct {
	Version       int          `json:"version"`
	Position      int          `json:"position"`
	Tokens        []int32      `json:"tokens"`
	Pending       []int32      `json:"pending,omitempty"`
	ContextTokens int          `json:"context_tokens,omitempty"`
	Renumbered    bool         `json:"renumbered,omitempty"`
	Long          bool         `json:"long_rope,omitempty"`
	Policy        *lukv.Policy `json:"policy,omitempty"` // metric, allocator, ratio and profile identity
}

// savedVersion 2 has the state of compression while decoding, see session_state.go;
// version 1 did not.
const savedVersion = 2

// Save writes the session to a file, see SaveTo. The file replaces an older one
// only when it is complete; only its owner may read it. The session is as before if ctx
// ends the call.
func (s *Session) Save(ctx context.Context, path string) error {
	return s.save("", func(meta map[string]string, extra []safetensors.Named) error {
		return s.cache.SaveFile(ctx, path, meta, extra...)
	})
}

// SaveTo writes the session to w, with everything that LoadSession needs to continue
// bit-identically: the cache with its per-head lengths and positions, the tokens, the
// last logits, the policy, what compression while decoding has seen, and the identity
// of the model. label is for the caller to recognise the session by, see [SessionInfo].
// What was written is of no use if ctx ends the call.
func (s *Session) SaveTo(ctx context.Context, w io.Writer, label string) error {
	return s.save(label, func(meta map[string]string, extra []safetensors.Named) error {
		return s.cache.Save(ctx, w, meta, extra...)
	})
}

// SavedSize returns the number of bytes that SaveTo will write.
func (s *Session) SavedSize(label string) (n int64, err error) {
	err = s.save(label, func(meta map[string]string, extra []safetensors.Named) (err error) {
		n, err = s.cache.SavedSize(meta, extra...)
		return err
	})
	return n, err
}

// save calls write with the session's metadata and tensors, as a call on the session.
func (s *Session) save(label string, write func(map[string]string, []safetensors.Named) error) error {
	err := s.enter()
	if err == nil {
		defer s.leave()
		err = s.ready()
	}
	var meta map[string]string
	if err == nil {
		meta, err = s.savedMeta(label)
	}
	if err == nil {
		err = write(meta, s.decodeTensors())
	}
	if err != nil {
		return fmt.Errorf("save session: %w", err)
	}
	return nil
}

// savedMeta returns the metadata of the session's file.
func (s *Session) savedMeta(label string) (map[string]string, error) {
	text, err := json.Marshal(savedSession{
		Version: savedVersion, Position: s.pos, Tokens: s.tokens, Pending: s.pending,
		ContextTokens: s.stats.ContextTokens, Renumbered: s.renumbered, Long: s.long, Policy: s.Policy(),
	})
	if err != nil {
		return nil, err
	}
	id := s.m.ID()
	if id == "" {
		return nil, fmt.Errorf("model: %w", ErrClosed)
	}
	meta := map[string]string{
		metaModel: id, metaSession: string(text), metaPrecision: string(s.m.precision),
	}
	if label != "" {
		meta[metaLabel] = label
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
	return meta, nil
}

// SessionInfo is what a saved session says about itself.
type SessionInfo struct {
	Label         string // as given to SaveTo
	Model         string // Model.ID
	Digest        string // Model.Digest, empty if it was not made
	Precision     Precision
	Tokens        []int32      // all tokens processed, evicted ones included
	Position      int          // of the next token
	ContextTokens int          // that were compressed
	Policy        *lukv.Policy // nil: not compressed
}

// ReadSessionInfo reads what a saved session of size bytes says about itself. It
// neither reads the cache nor verifies its checksum, which would take reading
// everything. The name is for messages. A cache without a session is an error.
func ReadSessionInfo(name string, r io.ReaderAt, size int64) (*SessionInfo, error) {
	f, err := kvcache.NewFile(name, r, size)
	if err != nil {
		return nil, fmt.Errorf("read session: %w", err)
	}
	defer f.Close()
	meta := f.Meta()
	state, err := parseSession(meta)
	if err != nil {
		return nil, fmt.Errorf("read session: %s: %w", name, err)
	}
	return &SessionInfo{
		Label: meta[metaLabel], Model: meta[metaModel], Digest: meta[metaDigest], Precision: Precision(meta[metaPrecision]),
		Tokens: state.Tokens, Position: state.Position, ContextTokens: state.ContextTokens, Policy: state.Policy,
	}, nil
}

// parseSession reads the session's part of the metadata.
func parseSession(meta map[string]string) (*savedSession, error) {
	if _, ok := meta[metaModel]; !ok {
		return nil, errors.New("the file holds a cache but no session")
	}
	var state savedSession
	if err := json.Unmarshal([]byte(meta[metaSession]), &state); err != nil {
		return nil, fmt.Errorf("session data: %w", err)
	}
	if state.Version < 1 || state.Version > savedVersion {
		return nil, fmt.Errorf("session data of version %d, expected 1 to %d", state.Version, savedVersion)
	}
	return &state, nil
}

// LoadSession returns the session that Save wrote to path, see [Model.LoadSessionFrom].
func (m *Model) LoadSession(ctx context.Context, path string, o SessionOptions) (*Session, error) {
	f, err := kvcache.OpenFile(path)
	if err != nil {
		return nil, fmt.Errorf("load session: %w", err)
	}
	return m.loadSession(ctx, path, f, o)
}

// LoadSessionFrom returns the session that SaveTo wrote, size bytes in all; the name
// is for messages. o.CacheType and o.Compression may be left out: the cache keeps its
// element type, and the saved policy continues to compress while decoding if it did
// (a policy that needs a profile must be given again). Compression while decoding
// that differs from the saved one starts afresh. Unless the session compresses while
// decoding, its entries may lie in large pages of the system, see LoadHuge of
// kvcache.Options. A file from another model, or of another precision, gives ErrWrongModel, a damaged one an error
// that says so. No memory is held if ctx ends the call.
func (m *Model) LoadSessionFrom(ctx context.Context, name string, r io.ReaderAt, size int64, o SessionOptions) (*Session, error) {
	f, err := kvcache.NewFile(name, r, size)
	if err != nil {
		return nil, fmt.Errorf("load session: %w", err)
	}
	return m.loadSession(ctx, name, f, o)
}

// LoadAndPrefill is [Model.LoadSessionFrom] and [Session.Prefill] of tokens at the same
// time, with the same bits: a layer of the prefill begins when the entries of the layer
// have been read. (With layers on a device, and where the session compresses while
// decoding, one follows the other.) It returns when the whole file has been verified, or
// ctx is done, which ends both. If only the prefill fails, the session stands where it was
// saved and is returned with the error.
func (m *Model) LoadAndPrefill(ctx context.Context, name string, r io.ReaderAt, size int64, o SessionOptions, tokens []int32) (*Session, error) {
	f, err := kvcache.NewFile(name, r, size)
	if err != nil {
		return nil, fmt.Errorf("load session: %w", err)
	}
	defer f.Close()
	s, failed, err := m.restoreAndFeed(ctx, f, o, tokens)
	if err != nil {
		return nil, fmt.Errorf("load session: %s: %w", name, err)
	}
	return s, failed
}

// restoreAndFeed returns the error of the prefill beside that of loading.
func (m *Model) restoreAndFeed(ctx context.Context, f *kvcache.File, o SessionOptions, tokens []int32) (s *Session, failed, err error) {
	h, err := m.readState(f, o)
	if err != nil {
		return nil, nil, err
	}
	if m.net.Device != nil || h.options.Compression != nil && h.options.Compression.Decode.Enabled() {
		if s, err = m.restoreFrom(ctx, f, h); err == nil {
			failed = s.Prefill(ctx, tokens)
		}
		return s, failed, err
	}
	var wrong error // with the file, but not with the cache in it
	cache, _, err := f.LoadWhile(ctx, h.cache, func(cache *kvcache.Cache, await func(layer int) error) {
		if s, wrong = m.assemble(cache, nil, h); wrong != nil {
			return
		}
		checked := 0
		s.await = func(layer int) error {
			if err := await(layer); err != nil {
				return err
			}
			for ; wrong == nil && checked <= layer; checked++ {
				wrong = s.checkPositions(checked, h.state.Position)
			}
			return wrong
		}
		// Reading and hashing have a processor to themselves: a helper that takes turns
		// with them would delay both.
		back := m.net.Pool.Lend()
		var all sync.WaitGroup
		all.Go(func() {
			_ = await(m.cfg.Layers - 1)
			back()
		})
		failed = s.Prefill(ctx, tokens)
		_ = s.await(m.cfg.Layers - 1) // the prefill may have ended early
		all.Wait()
		s.await = nil
	})
	switch {
	case err != nil && s != nil:
		return nil, nil, errors.Join(err, s.Close())
	case err != nil:
		return nil, nil, err
	case wrong != nil && s != nil:
		return nil, nil, errors.Join(wrong, s.Close())
	case wrong != nil:
		return nil, nil, errors.Join(wrong, cache.Close())
	}
	return s, failed, nil
}

// loadSession loads a session from f and closes f.
func (m *Model) loadSession(ctx context.Context, name string, f *kvcache.File, o SessionOptions) (*Session, error) {
	defer f.Close()
	s, err := m.restore(ctx, f, o)
	if err != nil {
		return nil, fmt.Errorf("load session: %s: %w", name, err)
	}
	return s, nil
}

// restore makes a session from a file.
func (m *Model) restore(ctx context.Context, f *kvcache.File, o SessionOptions) (*Session, error) {
	h, err := m.readState(f, o)
	if err != nil {
		return nil, err
	}
	return m.restoreFrom(ctx, f, h)
}

func (m *Model) restoreFrom(ctx context.Context, f *kvcache.File, h *sessionHeader) (*Session, error) {
	cache, extra, err := f.Load(ctx, h.cache)
	if err != nil {
		return nil, err
	}
	s, err := m.assemble(cache, extra, h)
	if err != nil {
		return nil, errors.Join(err, cache.Close())
	}
	for at := range m.cfg.Layers {
		if err := s.checkPositions(at, h.state.Position); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// sessionHeader is what is known of a saved session before its entries take memory.
type sessionHeader struct {
	meta    map[string]string
	state   *savedSession
	options SessionOptions // of the session to be
	cache   kvcache.Options
}

// readState checks the metadata of a file.
func (m *Model) readState(f *kvcache.File, o SessionOptions) (*sessionHeader, error) {
	meta := f.Meta()
	state, err := parseSession(meta)
	if err != nil {
		return nil, err
	}
	if err := m.made(meta); err != nil {
		return nil, err
	}
	if o.Compression == nil && state.Policy != nil && state.Policy.Decode.Enabled() {
		if d, err := state.Policy.Decode.WithDefaults(); err == nil && state.Version == 1 && !d.Prefill {
			return nil, errors.New("session data of version 1 lacks the state that its compression while decoding depends on: give a compression, which begins anew")
		}
		o.Compression = state.Policy
	}
	beside := 0
	for _, t := range f.Extra() {
		n, err := tensor.Bytes(t.Type, t.Shape)
		if err != nil {
			return nil, err
		}
		beside += n
	}
	if o.MaxCacheBytes > 0 && int64(beside) > o.MaxCacheBytes {
		return nil, fmt.Errorf("session data: %d bytes beside the cache: %w", beside, kvcache.ErrFull)
	}
	return &sessionHeader{meta, state, o, kvcache.Options{
		CPU: &m.net.CPU, MaxBytes: o.MaxCacheBytes, Account: m.memory, PageEntries: o.PageEntries, Device: m.Device(), DeviceLayers: m.DeviceLayers(),
		HugePages: o.HugePages && o.Compression == nil, LoadHuge: o.Compression == nil || !o.Compression.Decode.Enabled(),
	}}, nil
}

// made returns an error if another model made a file.
func (m *Model) made(meta map[string]string) error {
	have := m.ID()
	if have == "" {
		return fmt.Errorf("model: %w", ErrClosed)
	}
	if id := meta[metaModel]; id != have {
		return fmt.Errorf("%w: made with %s, this is %s", ErrWrongModel, id, have)
	}
	if p := Precision(meta[metaPrecision]); p != "" && p != m.precision {
		return fmt.Errorf("%w: its cache was computed in %s, this model computes in %s", ErrWrongModel, p, m.precision)
	}
	if have := m.digest.Load(); have != nil && meta[metaDigest] != "" && meta[metaDigest] != *have {
		return fmt.Errorf("%w: made with weights %s, these are %s", ErrWrongModel, meta[metaDigest], *have)
	}
	return nil
}

// assemble makes a session from a cache, whose entries may still be loading, and what
// came with it.
func (m *Model) assemble(cache *kvcache.Cache, extra map[string]tensor.Tensor, h *sessionHeader) (*Session, error) {
	have, o, state := cache.Options(), h.options, h.state
	type types struct{ keys, values tensor.Type }
	found := types{have.Type, cmp.Or(have.Values, have.Type)}
	if o.CacheType == 0 {
		o.CacheType, o.CacheValues = found.keys, found.values
	}
	s, err := m.newSession(o)
	if err != nil {
		return nil, err
	}
	if want := (types{s.opts.CacheType, s.opts.CacheValues}); found != want {
		return nil, fmt.Errorf("cache of type %s, expected %s", kvcache.TypeName(found.keys, found.values), kvcache.TypeName(want.keys, want.values))
	}
	if want := s.cacheOptions().WideKeys; !slices.Equal(have.WideKeys, want) {
		return nil, fmt.Errorf("cache with bf16 keys in layers %v, expected %v", have.WideKeys, want)
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
	if err := s.adopt(cache, state); err != nil {
		return nil, err
	}
	if s.comp.continues(state.Policy) && state.Version > 1 {
		if err := s.restoreDecode(extra); err != nil {
			return nil, fmt.Errorf("session data: state of the compression while decoding: %w", err)
		}
	}
	if text, ok := h.meta[metaLogits]; ok {
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
	s.cache, s.pos, s.tokens, s.pending = cache, state.Position, state.Tokens, state.Pending
	s.stats.ContextTokens, s.saved = state.ContextTokens, state.Policy
	s.renumbered, s.long = state.Renumbered, state.Long
	return nil
}

// checkPositions returns an error if a layer holds positions from that of the session on.
func (s *Session) checkPositions(layer, position int) error {
	for h := range s.m.cfg.KVHeads {
		if last := s.cache.LastPosition(layer, h); int(last) >= position {
			return fmt.Errorf("session data: layer %d head %d holds position %d, the session stands at %d", layer, h, last, position)
		}
	}
	return nil
}
