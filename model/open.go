package model

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/workers"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/internal/forward"
	"github.com/lukv/lukv/model/weights"
)

// Open loads the checkpoint in folder dir: config.json, safetensors weights
// (mapped, not copied) and, when first asked for, the tokenizer; or the model in the GGUF
// file dir (the first, if there are several), which must end in ".gguf". Everything is
// checked against the config before Open returns. The caller closes the model.
//
// Errors: ErrUnsupported for an architecture this package does not know; a
// descriptive error for anything missing, misshapen or malformed; see WithDevice
// for those of devices. ctx cancels copying weights to a device.
func Open(ctx context.Context, dir string, opts ...Option) (*Model, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open model %s: %w", dir, err)
	}
	if IsGGUF(dir) {
		return openGGUF(ctx, dir, opts)
	}
	cfg, err := arch.Load(dir)
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	w, err := weights.Load(dir, cfg)
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	w.ReadAhead()
	return open(ctx, inputfile.Dir(dir), cfg, w, opts)
}

// open makes the model of a checkpoint that has been loaded.
func open(ctx context.Context, source fs.FS, cfg *Config, w *weights.Weights, opts []Option) (*Model, error) {
	m, err := newModel(ctx, cfg, w, opts)
	if err != nil {
		w.Close()
		return nil, fmt.Errorf("open model: %w", err)
	}
	m.source = source
	if len(m.eos) == 0 { // some checkpoints name it in tokenizer_config.json alone
		if tok, err := m.Tokenizer(); err == nil && tok.EOS() >= 0 && int(tok.EOS()) < cfg.Vocab {
			m.eos = []int32{tok.EOS()}
		}
	}
	return m, nil
}

// OpenFS is Open for a checkpoint in a file system, such as an embedded one.
// Weights are read into memory.
func OpenFS(ctx context.Context, fsys fs.FS, opts ...Option) (*Model, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	cfg, err := arch.LoadFS(fsys)
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	w, err := weights.LoadFS(fsys, cfg)
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	return open(ctx, fsys, cfg, w, opts)
}

// openGGUF is Open for a GGUF file.
func openGGUF(ctx context.Context, path string, opts []Option) (*Model, error) {
	cfg, w, files, err := weights.LoadGGUF(path)
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	return open(ctx, files, cfg, w, opts)
}

// IsGGUF reports whether a checkpoint is a GGUF file and not a folder. Files that other
// programs keep under their hash have no extension and are known by their first bytes.
func IsGGUF(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	if strings.HasSuffix(path, ".gguf") {
		return true
	}
	f, err := inputfile.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	magic := make([]byte, 4)
	_, err = io.ReadFull(f, magic)
	return err == nil && string(magic) == "GGUF"
}

// Files returns the text files of the checkpoint at path, a folder or a GGUF file:
// config.json, tokenizer.json and so on. Those of a GGUF file are made from its metadata.
func Files(path string) (fs.FS, error) {
	if !IsGGUF(path) {
		return inputfile.Dir(path), nil
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	files, err := weights.TextFiles(f)
	if err != nil {
		return nil, fmt.Errorf("gguf file %s: %w", path, err)
	}
	return files, nil
}

// New returns a model over weights that have been checked against cfg, as
// Load and Random do. On success the model owns w.
func New(cfg *Config, w *weights.Weights, opts ...Option) (*Model, error) {
	return newModel(context.Background(), cfg, w, opts)
}

// maxThreads bounds the threads of a model, each of which has memory of its own.
const maxThreads = 1024

func newModel(ctx context.Context, cfg *Config, w *weights.Weights, opts []Option) (*Model, error) {
	o := options{precision: PrecisionAuto}
	for _, f := range opts {
		f(&o)
	}
	if o.threads < 1 {
		o.threads = runtime.GOMAXPROCS(0)
	}
	if o.threads > maxThreads {
		return nil, fmt.Errorf("%d threads, expected at most %d", o.threads, maxThreads)
	}
	if o.cpu == nil {
		c := kernels.Detect()
		o.cpu = &c
	}
	if o.logger == nil {
		o.logger = slog.New(slog.DiscardHandler)
	}
	if o.maxMemory < 0 {
		return nil, fmt.Errorf("a memory of %d bytes for all sessions: expected 0 for no bound or more", o.maxMemory)
	}
	switch o.precision {
	case PrecisionAuto, "":
		o.precision = autoPrecision(w)
	case PrecisionBF16, PrecisionInt8, PrecisionF32:
	default:
		return nil, fmt.Errorf("precision: found %q, expected auto, bf16, int8 or f32", o.precision)
	}
	if o.inputs != nil && (o.precision != PrecisionF32 || o.device != nil || o.deviceName != "" && o.deviceName != "cpu") {
		return nil, fmt.Errorf("the inputs of matrices are seen on the processor in the precision f32, found another")
	}
	m := &Model{cfg: cfg, weights: w, precision: o.precision, log: o.logger, digests: o.digests}
	var err error
	if m.net, err = forward.New(cfg, w, forward.Options{
		CPU: *o.cpu, Forms: o.precision.forms(), BF16: o.precision.roundsBF16(), Inputs: o.inputs,
	}); err != nil {
		return nil, err
	}
	m.identity = sync.OnceValue(func() (id string) {
		_ = m.weights.Reading(func() error { id = w.Identity(cfg); return nil }) // "" if the weights changed
		return id
	})
	for _, t := range cfg.EOS {
		m.eos = append(m.eos, int32(t))
	}
	if err := m.openDevice(ctx, w, &o); err != nil {
		return nil, err
	}
	if o.maxMemory > 0 {
		m.memory = kvcache.NewAccount(o.maxMemory)
	}
	m.net.Pool = workers.New(o.threads)
	m.runs.m = m
	device := "none"
	if m.net.Device != nil {
		device = m.Device().Info().Name
	}
	m.log.Info("model ready", "arch", cfg.Arch, "layers", cfg.Layers, "precision", m.precision,
		"threads", o.threads, "cpu", m.net.CPU.String(), "device", device, "device layers", m.DeviceLayers())
	return m, nil
}

// Close releases the weights. It waits for computations in progress; their
// callbacks may still use the model but must not call Close. Sessions that are
// still open then return ErrClosed and are closed as usual. Closing twice is fine.
func (m *Model) Close() error {
	if !m.use.close() {
		return nil
	}
	m.net.Pool.Close()
	m.runs.close()
	var err error
	if m.net.Device != nil {
		err = m.net.Device.Close()
	}
	return errors.Join(err, m.weights.Close())
}
