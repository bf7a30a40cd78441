package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

var errReadBefore = errors.New("idempotency: the body was read before the middleware, and not as a form: put the middleware around that, or have the body, and its ContentLength, restored")

// fingerprint returns a hash of what was sent: the media type, the form, if somebody has parsed it before, and the body.
func fingerprint(r *http.Request, body []byte) (string, error) {
	form, err := parsedForm(r)
	if err != nil {
		return "", err
	}
	// Without a length, an empty body is the sign that somebody has read it: it is rare that nothing is sent like that.
	if form == "" && (int64(len(body)) < r.ContentLength || r.ContentLength < 0 && len(body) == 0) {
		return "", errReadBefore
	}
	return hash(form, content(r.Header.Get("Content-Type"), body)), nil
}

// parsedForm returns a hash of the form that somebody has parsed before, or "" without one.
func parsedForm(r *http.Request) (string, error) {
	parts := []string{r.PostForm.Encode()}
	if form := r.MultipartForm; form != nil {
		parts = append(parts, url.Values(form.Value).Encode())
		for _, field := range slices.Sorted(maps.Keys(form.File)) {
			for _, header := range form.File[field] {
				file, err := header.Open()
				if err != nil {
					return "", err
				}
				sum := sha256.New()
				_, err = io.Copy(sum, file)
				if err = errors.Join(err, file.Close()); err != nil {
					return "", err
				}
				parts = append(parts, field, header.Filename, header.Header.Get("Content-Type"), string(sum.Sum(nil)))
			}
		}
	}
	if strings.Join(parts, "") == "" {
		return "", nil
	}
	return hash(parts...), nil
}

// content returns a hash of a body and its type. A client that repeats a request makes a new boundary, and may name
// the charset that is meant anyway.
func content(contentType string, body []byte) string {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return hash(contentType, string(body))
	}
	if strings.EqualFold(params["charset"], "utf-8") {
		delete(params, "charset")
	}
	texts := []string{string(body)}
	if strings.HasPrefix(kind, "multipart/") {
		if parts, ok := partsOf(body, params["boundary"]); ok || len(body) == 0 {
			delete(params, "boundary")
			texts = parts
		}
	}
	return hash(append(texts, mime.FormatMediaType(kind, params))...)
}

// partsOf returns the headers and the content of each part of a multipart body.
func partsOf(body []byte, boundary string) (parts []string, ok bool) {
	reader := multipart.NewReader(bytes.NewReader(body), boundary)
	for {
		part, err := reader.NextRawPart()
		if err == io.EOF { // and not one that wraps it: the last boundary was read
			return parts, true
		}
		if err != nil {
			return nil, false
		}
		header, _ := json.Marshal(part.Header) // sorted
		text, err := io.ReadAll(part)
		if err != nil {
			return nil, false
		}
		parts = append(parts, string(header), string(text))
	}
}

// sentURI returns the path and the query that the client has sent, of which http.StripPrefix and routers take parts
// away from r.URL only.
func sentURI(r *http.Request) string {
	if sent, err := url.ParseRequestURI(r.RequestURI); err == nil { // it may have the host in it
		return sent.RequestURI()
	}
	return r.URL.RequestURI()
}

// hash returns a hash of some texts and of where each ends.
func hash(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		_ = binary.Write(h, binary.BigEndian, uint64(len(part)))
		_, _ = io.WriteString(h, part)
	}
	return hex.EncodeToString(h.Sum(nil))
}
