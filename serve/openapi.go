package serve

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"net/http"
)

// openAPISpec describes all endpoints. Tests compare it with the routes, with the fields that
// handlers look for, and with the answers of all tests.
//
//go:embed openapi.json
var openAPISpec []byte

// openAPI answers with the description of the server's endpoints.
func (s *Server) openAPI(w http.ResponseWriter, _ *http.Request) {
	version, _ := json.Marshal(s.o.Version) // a text has one
	boundTaking(w)
	w.Header().Set("Content-Type", "application/json")
	w.Write(bytes.Replace(openAPISpec, []byte(`"version": "unknown"`), append([]byte(`"version": `), version...), 1))
}
