package command

import (
	"cmp"
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/internal/kvevents"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/internal/sysmem"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/serve"
)

// defaultAnswer is the limit on answers whose requests set none.
const defaultAnswer = 4096

// servedModel is a model of the command line.
type servedModel struct {
	id, name string
	m        *model.Model // nil: opened on demand
	weights  int64        // bytes, or what its files take
}

// onDemand reports whether models are opened when a request names them.
func (c *serveCmd) onDemand() bool { return c.UnloadAfter > 0 || c.MaxMemory > 0 }

// open adds the models to the server, opening them now or on demand. The caller closes
// those it returns.
func (c *serveCmd) open(e *env, s *serve.Server, events *kvevents.Publisher, log *slog.Logger) (models []*model.Model, err error) {
	var list []servedModel
	for _, at := range c.Models {
		x := servedModel{}
		x.id, x.name = named(at)
		if c.onDemand() {
			x.weights, err = sizeOnDisk(x.name)
		} else if x.m, err = c.load(e, x.name); err == nil {
			models, x.weights = append(models, x.m), x.m.WeightBytes()
		}
		if err != nil {
			return models, err
		}
		list = append(list, x)
	}
	o := c.engineOptions(log)
	share := cacheShare(list)
	for _, x := range list {
		if events != nil {
			o.OnPrefix = reportTo(events.Model(x.id))
		}
		if o.MaxBytes = int64(c.MaxCache); o.MaxBytes == 0 {
			o.MaxBytes = share
		}
		if o.PrefixCacheBytes = 0; o.MaxBytes == 0 { // nobody knows how much memory there is
			o.PrefixCacheBytes = 1 << 30
		}
		if x.m == nil {
			err = s.AddOnDemand(x.id, c.opener(e, x.name), o)
		} else if err = s.Add(x.id, x.m, o); err == nil {
			c.announce(log, &x, &o)
		}
		if err != nil {
			return models, err
		}
	}
	return models, nil
}

// opener returns the function that opens a model on demand.
func (c *serveCmd) opener(e *env, name string) func(context.Context) (*model.Model, error) {
	return func(ctx context.Context) (*model.Model, error) {
		of := *e
		of.ctx = ctx
		return c.load(&of, name)
	}
}

// engineOptions returns the options of engines, without the limit on caches.
func (c *serveCmd) engineOptions(log *slog.Logger) engine.Options {
	o := engine.Options{
		MaxRunning: c.MaxRunning, MaxQueue: c.MaxQueue, Requests: c.account(), MaxTokens: c.MaxContext,
		DefaultAnswer: defaultAnswer, AnswerTime: c.AnswerTime, Lookup: c.Lookup, Log: log,
	}
	o.CacheType, o.CacheValues = cacheTypes(c.CacheType)
	if c.Latency != nil {
		o.Latency = *c.Latency
	}
	if c.MaxAnswer != nil {
		o.MaxAnswer, o.DefaultAnswer = *c.MaxAnswer, 0
	}
	if c.Store != "" {
		o.Store, o.StoreBytes = filepath.Join(c.Store, "prefixes"), int64(c.StoreBytes)
	}
	return o
}

// leastShare bounds the default limit on caches from below.
const leastShare = 64 << 20

// cacheShare returns the default limit on the caches of each model, 0 if the memory is
// unknown: half of what the system has free after the weights, in equal parts, as a quarter
// is for requests (engine.ProcessAccount) and the rest for everything else. Mapped weights
// count as free until they are read. A model with layers on a device has at most half of
// the memory that is free there.
func cacheShare(list []servedModel) int64 {
	free := sysmem.Available()
	if free == 0 {
		return 0
	}
	weights := int64(0)
	for _, x := range list {
		weights += x.weights
	}
	share := max(free-weights, free/8) / 2
	for _, x := range list {
		if x.m == nil || x.m.Device() == nil {
			continue
		}
		if of := int64(x.m.Device().Info().Free); of > 0 {
			share = min(share, of/2*int64(x.m.Config().Layers)/int64(max(1, x.m.DeviceLayers())))
		}
	}
	return max(leastShare, share/int64(len(list)))
}

// sizeOnDisk returns the bytes of a model's files, 0 for the embedded one.
func sizeOnDisk(name string) (n int64, err error) {
	if name == builtin.Name {
		return 0, nil
	}
	dir, err := resolveModel(name)
	if err != nil {
		return 0, err
	}
	if model.IsGGUF(dir) {
		return sizeOfGGUF(dir)
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if ext := filepath.Ext(path); ext != ".safetensors" && ext != ".gguf" {
			return nil
		}
		info, err := os.Stat(path) // files of the hub's cache are links
		if err == nil {
			n += info.Size()
		}
		return err
	})
	return n, err
}

// sizeOfGGUF returns the bytes of all parts of a GGUF file.
func sizeOfGGUF(path string) (n int64, err error) {
	f, err := gguf.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for _, info := range f.Infos() {
		n += info.Size()
	}
	return n, nil
}

// announce says in the log what is served, and within which limits.
func (c *serveCmd) announce(log *slog.Logger, x *servedModel, o *engine.Options) {
	if log == nil {
		return
	}
	context := x.m.Config().MaxPositions
	if o.MaxTokens > 0 {
		context = o.MaxTokens
	}
	caches, answer := "no limit", cmp.Or(o.MaxAnswer, o.DefaultAnswer)
	if o.MaxBytes > 0 {
		caches = report.Bytes(o.MaxBytes)
	}
	method := "none, unless a request has kv_compression"
	if c.Compress != "" {
		method = strings.Join(strings.Fields(c.Compress), " ")
	}
	log.Info("model ready", "model", x.id, "weights", report.Bytes(x.weights), "max_cache", caches, "max_request_memory", report.Bytes(c.account().Limit()),
		"context", context, "answer", min(answer, context), "running", o.MaxRunning, "queue", o.MaxQueue, "kv_compression", method)
}
