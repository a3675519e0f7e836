package model

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/model/arch"
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
