package serve

import (
	"net/http"
	"time"
)

// ollamaModel describes a model in ollama's form; sizes are unknown before it is first loaded.
func (ms *models) ollamaModel(sl *slot) (out object, loaded bool) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	details := object{"parent_model": "", "format": "", "family": "", "families": []string{}, "parameter_size": "", "quantization_level": ""}
	out = object{"name": sl.id, "model": sl.id, "modified_at": time.Unix(sl.created, 0).UTC(), "size": 0, "digest": "", "details": details}
	v := sl.loaded
	if v == nil {
		return out, false
	}
	out["size"], out["digest"] = v.m.WeightBytes(), v.m.ID()
	arch := v.m.Config().Arch
	details["family"], details["families"] = arch, []string{arch}
	return out, true
}

// ollamaTags lists the models.
func (s *Server) ollamaTags(w http.ResponseWriter, _ *http.Request) error {
	list := []object{}
	for _, sl := range s.models.list() {
		m, _ := s.models.ollamaModel(sl)
		list = append(list, m)
	}
	return writeJSON(w, object{"models": list})
}

// ollamaLoaded lists the models in memory.
func (s *Server) ollamaLoaded(w http.ResponseWriter, _ *http.Request) error {
	list := []object{}
	for _, sl := range s.models.list() {
		if m, loaded := s.models.ollamaModel(sl); loaded {
			m["size_vram"], m["context_length"] = 0, s.models.entry(sl).MaxLen
			m["expires_at"] = time.Now().Add(24 * time.Hour).UTC() // clients need a time
			list = append(list, m)
		}
	}
	return writeJSON(w, object{"models": list})
}

// ollamaShow describes a model, which is loaded for that.
func (s *Server) ollamaShow(w http.ResponseWriter, r *http.Request) error {
	f, err := s.ollamaBody(r)
	if err != nil {
		return err
	}
	v, err := s.model(f, true)
	if err != nil {
		return err
	}
	out, _ := s.models.ollamaModel(s.models.find(f.str("model")))
	c := v.m.Config()
	out["modelfile"], out["parameters"], out["license"] = "", "", ""
	out["template"] = v.format.Template()
	out["capabilities"] = v.capabilities()
	out["model_info"] = object{
		"general.architecture": c.Arch, c.Arch + ".block_count": c.Layers, c.Arch + ".context_length": v.e.MaxTokens(),
		c.Arch + ".embedding_length": c.Hidden, c.Arch + ".feed_forward_length": c.Intermediate,
		c.Arch + ".attention.head_count": c.Heads, c.Arch + ".attention.head_count_kv": c.KVHeads,
	}
	return writeJSON(w, out)
}

// capabilities returns what the model can do, in ollama's words.
func (v *served) capabilities() []string {
	if _, err := v.m.Embedding(); err == nil {
		return []string{"embedding"}
	}
	out := []string{"completion", "tools"}
	if v.syntax.Reasons() {
		out = append(out, "thinking")
	}
	return out
}

// ollamaEmbed answers /api/embed. Texts that are too long are refused, never cut.
func (s *Server) ollamaEmbed(w http.ResponseWriter, r *http.Request) error {
	began := time.Now()
	q, list, err := s.ollamaVectors(r, "input")
	if err != nil {
		return err
	}
	return writeJSON(w, object{
		"model": q.v.id, "embeddings": list, "total_duration": time.Since(began), "load_duration": 0, "prompt_eval_count": q.tokens,
	})
}

// ollamaEmbedding answers /api/embeddings, the older form for one text.
func (s *Server) ollamaEmbedding(w http.ResponseWriter, r *http.Request) error {
	_, list, err := s.ollamaVectors(r, "prompt")
	if err != nil {
		return err
	}
	return writeJSON(w, object{"embedding": list[0]})
}

func (s *Server) ollamaVectors(r *http.Request, key string) (*embed, [][]float32, error) {
	f, err := s.ollamaBody(r)
	if err != nil {
		return nil, nil, err
	}
	if key == "prompt" { // of the older form, which has one vector
		f.str(key)
	}
	q, err := s.embedRequest(r, f, key)
	if err != nil {
		return nil, nil, err
	}
	list, err := s.vectors(r, q)
	return q, list, err
}
