package serve

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/http"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/model"
)

// maxInputs bounds the texts of a request for embeddings.
const maxInputs = 2048

// elementCost is about how many bytes an element of an embedding takes in an answer.
const elementCost = 24

// embedding is one vector of an answer: numbers, or their little-endian bytes in base64.
type embedding struct {
	Object string `json:"object"`
	Index  int    `json:"index"`
	Vector any    `json:"embedding"`
}

type embeddingUsage struct {
	Prompt int `json:"prompt_tokens"`
	Total  int `json:"total_tokens"`
}

type embeddingAnswer struct {
	Object string         `json:"object"`
	Data   []embedding    `json:"data"`
	Model  string         `json:"model"`
	Usage  embeddingUsage `json:"usage"`
}

// embed is a request for embeddings.
type embed struct {
	v       *served
	how     model.Embedding
	prompts [][]int32
	tokens  int
	dims    int
}

// embedding returns how the model makes embeddings, or the error of one that makes none.
func (v *served) embedding() (model.Embedding, error) {
	how, err := v.m.Embedding()
	switch {
	case errors.Is(err, model.ErrNoEmbedding):
		return how, &apiError{status: http.StatusNotImplemented, Type: "invalid_request_error", Param: "model",
			Message: fmt.Sprintf("the model %s has no embeddings: its checkpoint does not say how its hidden states become one vector (modules.json, or pooling_type of a GGUF file)", v.id)}
	case err != nil:
		return how, &apiError{status: http.StatusNotImplemented, Type: "invalid_request_error", Param: "model", Message: fmt.Sprintf("the model %s: %v", v.id, err)}
	}
	return how, nil
}

// embedRequest reads what all protocols have in common: texts under a key, and dimensions.
func (s *Server) embedRequest(r *http.Request, f *fields, key string) (*embed, error) {
	v, err := s.model(f, true)
	if err != nil {
		return nil, err
	}
	q := &embed{v: v, dims: f.integer("dimensions", 0, 1, math.MaxInt32)}
	if q.how, err = v.embedding(); err != nil {
		return nil, err
	}
	if hidden := v.m.Config().Hidden; q.dims > hidden {
		f.fail("dimensions", "found %d, expected at most %d, those of the model", q.dims, hidden)
	}
	texts := &textRequest{sharedFields: sharedFields{v: v}}
	list, err := texts.prompts(r, f, key, maxInputs, true, false)
	if err != nil {
		return nil, err
	}
	for _, p := range list {
		if len(p.tokens) > v.e.MaxTokens() {
			return nil, v.positions(len(p.tokens), 0)
		}
		q.prompts = append(q.prompts, p.tokens)
		q.tokens += len(p.tokens)
	}
	if q.dims == 0 {
		q.dims = v.m.Config().Hidden
	}
	return q, nil
}

// vectors computes the embeddings.
func (s *Server) vectors(r *http.Request, q *embed) ([][]float32, error) {
	if err := holdsOf(r.Context()).charge.take(int64(len(q.prompts)*q.dims)*elementCost, forAnswers); err != nil {
		return nil, err
	}
	holdsOf(r.Context()).turn.Give()
	list, err := q.v.e.Embed(r.Context(), s.salted(contextOf(r), engine.Request{}), q.prompts, q.how, q.dims)
	if err != nil {
		return nil, asError(err, q.v.e.MaxTokens())
	}
	return list, nil
}

// embeddings answers as OpenAI's endpoint does.
func (s *Server) embeddings(w http.ResponseWriter, r *http.Request) error {
	f, err := body(r)
	if err != nil {
		return err
	}
	encoding := f.str("encoding_format")
	if encoding != "" && encoding != "float" && encoding != "base64" {
		f.fail("encoding_format", "found %.20q, expected float or base64", encoding)
	}
	q, err := s.embedRequest(r, f, "input")
	if err != nil {
		return err
	}
	list, err := s.vectors(r, q)
	if err != nil {
		return err
	}
	out := embeddingAnswer{Object: "list", Data: []embedding{}, Model: q.v.id, Usage: embeddingUsage{q.tokens, q.tokens}}
	var data []embedding
	for i, x := range list {
		e := embedding{Object: "embedding", Index: i, Vector: x}
		if encoding == "base64" {
			e.Vector = base64Floats(x)
		}
		data = append(data, e)
	}
	return writeList(w, out, "data", data)
}

// base64Floats returns the little-endian bytes of floats in base64.
func base64Floats(x []float32) string {
	var b []byte
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return base64.StdEncoding.EncodeToString(b)
}
