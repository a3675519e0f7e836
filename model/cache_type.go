package model

import (
	"cmp"
	"fmt"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/tensor"
)

// resolveCacheType fills in the types of cached keys and values.
func (m *Model) resolveCacheType(o *SessionOptions) (err error) {
	if p := o.Compression; p != nil && p.CacheType != "" {
		if o.CacheType, o.CacheValues, err = kvcache.ParseType(p.CacheType); err != nil {
			return err
		}
	}
	if o.CacheType == 0 {
		o.CacheType = tensor.F32
		if m.precision.roundsBF16() {
			o.CacheType = tensor.BF16
		}
	}
	o.CacheValues = cmp.Or(o.CacheValues, o.CacheType)
	return nil
}

// WithoutCompression returns the options without a policy, but with the cache type that it names,
// for sessions that are compressed later.
func (o SessionOptions) WithoutCompression() SessionOptions {
	if p := o.Compression; p != nil && p.CacheType != "" {
		if keys, values, err := kvcache.ParseType(p.CacheType); err == nil {
			o.CacheType, o.CacheValues = keys, values
		}
	}
	o.Compression = nil
	return o
}

// checkCacheType returns an error if a policy names another cache type than a session has.
func checkCacheType(p *lukv.Policy, o *SessionOptions) error {
	if p.CacheType == "" {
		return nil
	}
	keys, values, err := kvcache.ParseType(p.CacheType)
	if err == nil && (keys != o.CacheType || values != o.CacheValues) {
		err = fmt.Errorf("cache type %s, but the session's cache is %s", p.CacheType, kvcache.TypeName(o.CacheType, o.CacheValues))
	}
	return err
}

// entryBytes returns the size of a key and a value, scales included; if it differs between
// layers, the mean over ragged ones, rounded up.
func (m *Model) entryBytes(o *SessionOptions) int {
	cache, sum, layers := m.cacheOptions(o, false), 0, 0
	for at := range m.cfg.Layers {
		if m.cfg.Ragged(at) {
			l := cache.Layout(at)
			sum += l.KeyBytes() + l.ValueBytes()
			layers++
		}
	}
	if layers == 0 {
		l := cache.Layout(0)
		return l.KeyBytes() + l.ValueBytes()
	}
	return (sum + layers - 1) / layers
}

func (s *Session) cacheOptions() kvcache.Options { return s.m.cacheOptions(&s.opts, s.comp != nil) }

// cacheOptions returns the options of a session's cache.
func (m *Model) cacheOptions(o *SessionOptions, evicts bool) kvcache.Options {
	c := m.cfg
	return kvcache.Options{
		Layers: c.Layers, KVHeads: c.KVHeads, HeadDim: c.HeadDim, CPU: &m.net.CPU,
		Type: o.CacheType, Values: o.CacheValues, WideKeys: m.net.WideKeys(o.CacheType),
		PageEntries: o.PageEntries, HugePages: o.HugePages && !evicts,
		Windows: c.Windows, MaxBytes: o.MaxCacheBytes, Account: m.memory,
		Device: m.Device(), DeviceLayers: m.DeviceLayers(),
	}
}

// page returns the layout of the cache's pages, those of layers without wide keys.
func (s *Session) page() kernels.PageLayout {
	o := s.cache.Options()
	o.WideKeys = nil
	return o.Layout(0)
}

// defaultPageEntries is the page size of caches, see kvcache.Options.
const defaultPageEntries = 64
