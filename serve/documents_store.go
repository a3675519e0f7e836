package serve

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/filelock"
	"github.com/lukv/lukv/internal/inputfile"
)

// Every document has its own file, so that damage affects it alone. The first line says
// the format and holds the SHA-256 of the rest, a savedDocument as JSON. The cache is not
// included: if the engine's store has lost it, it is recomputed from the text to the same
// bits.
const documentHead = "lukv document 1 "

// maxDocumentFile bounds a document's file.
const maxDocumentFile = 1 << 30

// savedDocument is the content of a document's file.
type savedDocument struct {
	Document document  `json:"document"` // what the API shows of it
	Owner    string    `json:"owner,omitempty"`
	Text     string    `json:"text"`
	System   string    `json:"system,omitempty"`
	Salt     string    `json:"salt,omitempty"`
	Date     time.Time `json:"date"` // given to templates
	Stored   string    `json:"stored,omitempty"`
}

// documentName matches the names of document files: owner, id.
var documentName = regexp.MustCompile(`^([0-9a-f]{24}|all)-(doc_[0-9a-f]{24})\.document$`)

// OpenStore keeps the server's documents in a folder that outlives the server: an
// acknowledged document is there when the next server opens the folder, and answers with
// the same bits. The folder is created if it does not exist; only one server at a time
// may use it. Damaged files are set aside under a name that ends in .damaged and affect
// nothing else; a file that cannot be read is an error. Call it before serving.
func (s *Server) OpenStore(dir string) error {
	if err := s.openStore(dir); err != nil {
		return fmt.Errorf("open store of documents: %w", err)
	}
	return nil
}

func (s *Server) openStore(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if s.docs.lock, err = lockStore(dir); err != nil {
		return err
	}
	s.docs.mu.Lock()
	defer s.docs.mu.Unlock()
	s.docs.dir = dir
	for _, at := range names {
		if !documentName.MatchString(at.Name()) {
			continue
		}
		path := filepath.Join(dir, at.Name())
		doc, err := s.readDocument(path)
		if failed := syscall.Errno(0); errors.As(err, &failed) && !errors.Is(err, fs.ErrNotExist) { // says nothing about its contents
			return err
		}
		if err != nil {
			s.o.Log.Error("document is damaged and set aside", "file", at.Name(), "error", err)
			if err := os.Rename(path, path+".damaged"); err != nil {
				s.o.Log.Error("document cannot be set aside", "file", at.Name(), "error", err)
			}
			continue
		}
		s.docs.add(doc)
	}
	s.docs.sort()
	return nil
}

// lockStore takes the lock of a folder of documents, which ends with the process or when
// the file is closed.
func lockStore(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if free, err := filelock.Try(lock); err != nil || !free {
		lock.Close()
		if err == nil {
			err = fmt.Errorf("%s is in use by another server, expected a folder for each", dir)
		}
		return nil, err
	}
	return lock, nil
}

// readDocument reads a document's file and finds the profile of its policy.
func (s *Server) readDocument(path string) (*document, error) {
	data, err := inputfile.Read(path, maxDocumentFile)
	if err != nil {
		return nil, err
	}
	saved, err := parseDocument(data)
	if err != nil {
		return nil, err
	}
	doc := &saved.Document
	doc.owner, doc.text, doc.System, doc.salt, doc.date = saved.Owner, saved.Text, saved.System, saved.Salt, saved.Date
	doc.stored = saved.Stored
	if want := documentFile(doc.owner, doc.ID); filepath.Base(path) != want {
		return nil, fmt.Errorf("it is %s", want)
	}
	if p := doc.Policy; p.ProfileDigest != "" {
		if p.Profile = s.profiles.Load().of(p.ProfileDigest); p.Profile == nil {
			doc.Status = "failed"
			doc.Error = fmt.Sprintf("it was compressed with the profile %s, which this server does not have", p.ProfileDigest)
			s.o.Log.Warn("document without its profile", "document", doc.ID, "profile", p.ProfileDigest)
		}
	}
	doc.policy = doc.Policy
	return doc, nil
}

// parseDocument parses the contents of a document's file.
func parseDocument(data []byte) (*savedDocument, error) {
	head, text, ok := bytes.Cut(data, []byte("\n"))
	digest, is := bytes.CutPrefix(head, []byte(documentHead))
	if !ok || !is {
		return nil, errors.New("not a document")
	}
	if sum := sha256.Sum256(text); string(digest) != hex.EncodeToString(sum[:]) {
		return nil, fmt.Errorf("checksum: found %x, expected %.64s", sum, digest)
	}
	var saved savedDocument
	if err := json.Unmarshal(text, &saved); err != nil {
		return nil, err
	}
	switch d := &saved.Document; {
	case d.Policy == nil || saved.Text == "" || d.Cache == nil:
		return nil, errors.New("text, policy or cache are missing")
	case d.Tokens < 0:
		return nil, fmt.Errorf("found %d tokens", d.Tokens)
	default:
		return &saved, d.Policy.Validate()
	}
}

func documentFile(owner, id string) string {
	if owner == "" {
		owner = "all"
	}
	return owner + "-" + id + ".document"
}

// save writes a document's file, which is on disk when save returns.
func (d *documents) save(doc *document) error {
	if d.dir == "" {
		return nil
	}
	text, err := json.Marshal(savedDocument{*doc, doc.owner, doc.text, doc.System, doc.salt, doc.date, doc.stored})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	return atomicfile.Write(filepath.Join(d.dir, documentFile(doc.owner, doc.ID)), 0o600, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s%x\n%s", documentHead, sum, text)
		return err
	})
}

// put saves a document that has been read and adds it, unless stays says that the entry now
// there is to be left alone.
func (d *documents) put(doc *document, stays func(now *document) bool) error {
	d.files.Lock()
	defer d.files.Unlock()
	at := docKey{doc.owner, doc.ID}
	d.mu.Lock()
	stay := stays(d.byID[at])
	d.mu.Unlock()
	if stay {
		return nil
	}
	if err := d.save(doc); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if old := d.byID[at]; old != nil {
		doc.LastUsed = max(doc.LastUsed, old.LastUsed)
	}
	d.add(doc)
	return nil
}

// remove removes a document and its file, and returns the document.
func (d *documents) remove(at docKey) (*document, error) {
	d.files.Lock()
	defer d.files.Unlock()
	d.mu.Lock()
	doc := d.byID[at]
	d.mu.Unlock()
	if doc == nil {
		return nil, notFound("document_not_found", "document %q not found", at.id)
	}
	if err := d.removeFile(at); err != nil {
		return nil, fmt.Errorf("delete document %s: %w", at.id, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	doc = d.byID[at] // also one that is being read has an entry
	d.drop(at)
	return doc, nil
}

// removeFile removes a document's file.
func (d *documents) removeFile(at docKey) error {
	if d.dir == "" {
		return nil
	}
	err := os.Remove(filepath.Join(d.dir, documentFile(at.owner, at.id)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if f, err := os.Open(d.dir); err == nil {
		_ = f.Sync() // makes it durable where folders can be synced
		f.Close()
	}
	return nil
}

// close lets another server use the folder.
func (d *documents) close() {
	if d.lock != nil {
		d.lock.Close()
	}
}
