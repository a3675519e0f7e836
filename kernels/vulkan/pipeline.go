//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/vk"
)

//go:generate go run ./shaders/generate

//go:embed shaders/*.spv
var shaderFiles embed.FS

// maxConstants is the number of specialisation constants that a shader may have.
const maxConstants = 16

// pipelineKey identifies a pipeline: a shader, the size of its subgroups (0: any) and
// the values of its constants.
type pipelineKey struct {
	shader    string
	subgroup  uint32
	constants [maxConstants]uint32
}

// pipelines makes pipelines on demand and keeps them.
type pipelines struct {
	dev    *vk.Device
	layout vk.PipelineLayout
	cache  vk.PipelineCache
	file   string // "" for none
	stored [32]byte

	mu      sync.Mutex
	shaders map[string]vk.ShaderModule
	made    map[pipelineKey]vk.Pipeline
}

func newPipelines(dev *vk.Device, dir string) (*pipelines, error) {
	p := &pipelines{dev: dev, shaders: map[string]vk.ShaderModule{}, made: map[pipelineKey]vk.Pipeline{}}
	if dir == "" {
		if user, err := os.UserCacheDir(); err == nil {
			dir = filepath.Join(user, "lukv")
		} else {
			dir = "-"
		}
	}
	var data []byte
	if dir != "-" {
		// The driver checks the data, but not whether it is complete.
		p.file = filepath.Join(dir, fmt.Sprintf("pipelines-%s-%x.bin", hex.EncodeToString(dev.Physical.CacheUUID[:]), dev.Physical.DriverVersion))
		data = readCache(p.file)
		p.stored = sha256.Sum256(data)
	}
	var err error
	if p.layout, err = dev.CreatePipelineLayout(pushBytes); err != nil {
		return nil, err
	}
	if p.cache, err = dev.CreatePipelineCache(data); err != nil && data != nil {
		p.cache, err = dev.CreatePipelineCache(nil)
	}
	if err != nil {
		p.destroy()
		return nil, err
	}
	return p, nil
}

// maxCacheFile is the most bytes that are read from a cache file.
const maxCacheFile = 256 << 20

// readCache returns the data of a cache file, nil if it is missing or damaged.
// The file is a SHA-256 sum followed by the data.
func readCache(file string) []byte {
	data, err := inputfile.Read(file, maxCacheFile)
	if err != nil || len(data) <= sha256.Size {
		return nil
	}
	sum := sha256.Sum256(data[sha256.Size:])
	if string(sum[:]) != string(data[:sha256.Size]) {
		return nil
	}
	return data[sha256.Size:]
}

// save writes the cache file if the cache has changed.
func (p *pipelines) save() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.file == "" || len(p.made) == 0 {
		return nil
	}
	data, err := p.dev.PipelineCacheData(p.cache)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	if sum == p.stored {
		return nil
	}
	// Write under another name first, so that other processes see a complete file or none.
	dir := filepath.Dir(p.file)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("save the pipeline cache: %w", err)
	}
	f, err := os.CreateTemp(dir, ".pipelines-*")
	if err != nil {
		return fmt.Errorf("save the pipeline cache: %w", err)
	}
	_, err = f.Write(append(sum[:], data...))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), p.file)
	}
	if err != nil {
		return fmt.Errorf("save the pipeline cache: %w", errors.Join(err, os.Remove(f.Name())))
	}
	p.stored = sum
	return nil
}

func (p *pipelines) destroy() {
	for _, pipe := range p.made {
		p.dev.DestroyPipeline(pipe)
	}
	for _, m := range p.shaders {
		p.dev.DestroyShaderModule(m)
	}
	if p.cache != 0 {
		p.dev.DestroyPipelineCache(p.cache)
	}
	if p.layout != 0 {
		p.dev.DestroyPipelineLayout(p.layout)
	}
}

// get returns a pipeline, compiling it on first use.
func (p *pipelines) get(shader string, subgroup uint32, constants []uint32) (vk.Pipeline, error) {
	key := pipelineKey{shader: shader, subgroup: subgroup}
	if copy(key.constants[:], constants) < len(constants) {
		return 0, fmt.Errorf("compile shader %s: found %d constants, expected at most %d", shader, len(constants), maxConstants)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if pipe, ok := p.made[key]; ok {
		return pipe, nil
	}
	m, ok := p.shaders[shader]
	if !ok {
		code, err := fs.ReadFile(shaderFiles, "shaders/"+shader+".spv")
		if err != nil {
			return 0, fmt.Errorf("load shader %s: %w", shader, err)
		}
		if m, err = p.dev.CreateShaderModule(code); err != nil {
			return 0, fmt.Errorf("load shader %s: %w", shader, err)
		}
		p.shaders[shader] = m
	}
	pipe, err := p.dev.CreateComputePipeline(p.cache, p.layout, m, subgroup, constants)
	if err != nil {
		return 0, fmt.Errorf("compile shader %s with %v: %w", shader, constants, err)
	}
	p.made[key] = pipe
	return pipe, nil
}
