package fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-rlock/rlock"
)

// TokenMetadata is the header in which [HTTPObjects] keeps the token, as S3 has it.
const TokenMetadata = "X-Amz-Meta-Fencing-Token"

// ErrChanged is what PutIf of [Objects] returns if its condition does not hold: 412 or 409 in S3.
var ErrChanged = errors.New("the object has changed")

// Objects is a store with conditional writes, such as S3: an ETag for each version of an object, and metadata.
type Objects interface {
	// Head returns the ETag of an object and the token in its metadata, 0 if it has none. Without an object the ETag
	// is empty.
	Head(ctx context.Context, key string) (etag string, token int64, err error)
	// PutIf writes the object with the token in its metadata, if its ETag is still the same (If-Match), or, if etag is
	// empty, if there is none (If-None-Match: *). Otherwise it writes nothing and returns ErrChanged.
	PutIf(ctx context.Context, key, etag string, token int64, body []byte) error
}

// Put writes an object under the token of the lease. If the object has a higher token, nothing is written, and the
// error matches [ErrStale]. If another write comes between its read and its write, it reads again, until the lease ends.
//
// The store must compare and write in one step. An object that was deleted has lost its token: write an empty one
// instead. After an error of the network it is unknown whether the object was written; repeating it with the same
// lease is harmless.
func Put(ctx context.Context, store Objects, lease *rlock.Lease, key string, body []byte) error {
	if store == nil {
		return invalid("the store is nil")
	}
	if key == "" {
		return invalid("the key is empty")
	}
	own, err := token(lease)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx = lease.Context(ctx)
	for {
		etag, seen, err := store.Head(ctx, key)
		if err != nil {
			return because(ctx, lease, err)
		}
		if seen > own {
			return &StaleError{Resource: key, Token: own, Seen: seen}
		}
		err = store.PutIf(ctx, key, etag, own, body)
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrChanged) || ctx.Err() != nil {
			return because(ctx, lease, err)
		}
	}
}

// HTTPObjects are objects at Base and the escaped key, by HEAD and PUT with the headers of S3: ETag, If-Match, If-None-Match and
// [TokenMetadata]. A key may have any text between its slashes but "." and "..": the error then matches
// rlock.ErrInvalidArgument. Requests are not signed: the Transport of the Client can do that.
type HTTPObjects struct {
	Client *http.Client // nil: http.DefaultClient
	Base   string       // such as https://bucket.example/
}

// url returns the URL of an object.
func (h HTTPObjects) url(key string) (string, error) {
	base, err := url.Parse(h.Base)
	if err != nil || base.Host == "" || strings.ContainsAny(h.Base, "?#") {
		return "", invalid("the base has to be a URL without a query") // it may have a password in it
	}
	if base.Path == "" { // else a key could go on with the host
		base.Path = "/"
	}
	for _, segment := range strings.Split(base.Path+key, "/") {
		if segment == "." || segment == ".." {
			return "", invalid("the key %q has the segment %q", key, segment)
		}
	}
	segments := strings.Split(key, "/")
	for i, segment := range segments {
		segments[i] = strings.ReplaceAll(url.QueryEscape(segment), "+", "%20") // as S3 signs it
	}
	return base.String() + strings.Join(segments, "/"), nil
}

func (h HTTPObjects) do(ctx context.Context, method, key string, body []byte, header map[string]string) (*http.Response, error) {
	target, err := h.url(key)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	client := h.Client
	if client == nil {
		client = http.DefaultClient
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10)) // so that the connection is used again
	_ = res.Body.Close()
	return res, nil
}

// Head implements [Objects]. An object without an ETag is an error: no write to it could be conditional.
func (h HTTPObjects) Head(ctx context.Context, key string) (etag string, token int64, err error) {
	res, err := h.do(ctx, http.MethodHead, key, nil, nil)
	if err != nil {
		return "", 0, err
	}
	switch {
	case res.StatusCode == http.StatusNotFound:
		return "", 0, nil
	case res.StatusCode != http.StatusOK:
		return "", 0, fmt.Errorf("fence: HEAD %q: %s", key, res.Status)
	}
	if etag = res.Header.Get("ETag"); etag == "" {
		return "", 0, fmt.Errorf("fence: HEAD %q: the answer has no ETag", key)
	}
	text := res.Header.Get(TokenMetadata)
	if text == "" {
		return etag, 0, nil
	}
	if token, err = strconv.ParseInt(text, 10, 64); err != nil {
		return "", 0, fmt.Errorf("fence: HEAD %q: the token is %q", key, text)
	}
	return etag, token, nil
}

// PutIf implements [Objects].
func (h HTTPObjects) PutIf(ctx context.Context, key, etag string, token int64, body []byte) error {
	header := map[string]string{TokenMetadata: strconv.FormatInt(token, 10)}
	if etag == "" {
		header["If-None-Match"] = "*"
	} else {
		header["If-Match"] = etag
	}
	res, err := h.do(ctx, http.MethodPut, key, body, header)
	switch {
	case err != nil:
		return err
	case res.StatusCode == http.StatusPreconditionFailed, res.StatusCode == http.StatusConflict,
		res.StatusCode == http.StatusNotFound && etag != "": // it was deleted meanwhile
		return ErrChanged
	case res.StatusCode/100 != 2:
		return fmt.Errorf("fence: PUT %q: %s", key, res.Status)
	}
	return nil
}
