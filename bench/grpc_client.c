// Sends one gRPC message again and again over several connections, and reports like wrk.
//
//   load PORT CONNECTIONS SECONDS MESSAGE PATH IN_FLIGHT MODE
//
// MESSAGE is a file with the message and its five bytes of prefix, PATH the method. Each connection has IN_FLIGHT calls
// open (MODE "unary"), or one call with IN_FLIGHT messages under way (MODE "stream"). A closed loop: each answer lets
// the next message go. Header blocks are those of gRPC's C core: literals with indexing first, indexed from then on.
// SIGINT ends it. The last line is `RESULT {json}`: requests, microseconds, percentiles, errors. An error is an answer
// without a message, of another size than the first one, a stream that is reset, or a connection that ends.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE };
enum { HEAD_SIZE = 9, RECEIVE_SIZE = 1 << 18, COPIED = 1 << 14, LARGEST_FRAME = 1 << 20, SLOWEST_US = 1 << 20, WINDOW = 0x7fffffff, REFILL = 1 << 28 };

typedef struct {
  uint32_t id;       // of the stream; 0 while the place is free
  int64_t window;    // bytes that the server takes on this stream
  size_t sent;       // bytes of the message that are sent
  int64_t received;  // bytes of the answer
  double begun;
} Call;

typedef struct {
  uint8_t *bytes;
  size_t size, room;
} Bytes;

typedef struct {
  int socket, is_open, has_sent_headers, is_settled;
  uint32_t next_id;
  int64_t window;     // bytes that the server takes on this connection
  int64_t unreported; // bytes taken in since the last WINDOW_UPDATE
  Bytes out;          // bytes that wait for the socket
  const uint8_t *part; // of the message, which goes from where it is after 'out': as wrk sends a body
  size_t part_size;
  Bytes behind;       // what waits for the end of that part
  uint8_t head[HEAD_SIZE], content[256]; // the frame that comes; only short ones are kept
  size_t head_got, content_got, content_left;
  Call *calls;
  // Of the one call in stream mode: messages that may go, and the answer that comes.
  int owed;
  uint8_t prefix[5];
  size_t prefix_got, answer_left;
  double *begun; // a ring of IN_FLIGHT times
  uint32_t begun_first, begun_count;
} Connection;

static uint8_t *message, first_block[512], next_block[16];
static size_t message_size, first_size, next_size;
static int in_flight, is_stream, poller;
static uint32_t stream_window = 65535, frame_size = 16384, latencies[SLOWEST_US];
static long requests, errors;
static int64_t answer_size = -1;
static volatile sig_atomic_t interrupted;

static void interrupt(int number) { (void)number; interrupted = 1; }

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec / 1e9;
}

static void literal(int name_index, const char *name, const char *value) {
  first_block[first_size++] = 0x40 | name_index;
  if (!name_index) {
    first_block[first_size++] = strlen(name);
    memcpy(first_block + first_size, name, strlen(name));
    first_size += strlen(name);
  }
  first_block[first_size++] = strlen(value);
  memcpy(first_block + first_size, value, strlen(value));
  first_size += strlen(value);
}

static void make_blocks(const char *path, int port) {
  char authority[32];
  snprintf(authority, sizeof authority, "127.0.0.1:%d", port);
  first_block[first_size++] = 0x86; // :scheme http
  first_block[first_size++] = 0x83; // :method POST
  literal(4, "", path);
  literal(1, "", authority);
  literal(0, "grpc-accept-encoding", "identity, deflate, gzip");
  literal(0, "te", "trailers");
  literal(31, "", "application/grpc");
  literal(58, "", "grpc-c++/1.54.3 grpc-c/31.0.0 (linux; chttp2)");
  next_block[next_size++] = 0x86;
  next_block[next_size++] = 0x83;
  for (int field = 0; field < 6; field++) next_block[next_size++] = 0x80 | (62 + 5 - field);
}

static void put(Connection *connection, const void *bytes, size_t size) {
  Bytes *to = connection->part_size ? &connection->behind : &connection->out;
  if (to->size + size > to->room) {
    to->room = 2 * (to->size + size);
    to->bytes = realloc(to->bytes, to->room);
  }
  memcpy(to->bytes + to->size, bytes, size);
  to->size += size;
}

static void put_head(Connection *to, int kind, int flags, uint32_t id, uint32_t size) {
  uint8_t head[HEAD_SIZE] = {size >> 16, size >> 8, size, kind, flags, id >> 24, id >> 16, id >> 8, id};
  put(to, head, HEAD_SIZE);
}

static void put_frame(Connection *to, int kind, int flags, uint32_t id, const void *content, uint32_t size) {
  put_head(to, kind, flags, id, size);
  put(to, content, size);
}

static size_t unsent(const Connection *connection) {
  return connection->out.size + connection->part_size;
}

static void put_window_update(Connection *to, uint32_t size) {
  uint8_t content[4] = {size >> 24, size >> 16, size >> 8, size};
  put_frame(to, WINDOW_UPDATE, 0, 0, content, 4);
}

static void lose(Connection *connection) {
  if (!connection->is_open) return;
  errors++;
  connection->is_open = 0;
  close(connection->socket);
}

static void watch(Connection *connection, int for_room) {
  struct epoll_event event = {.events = EPOLLIN | (for_room ? EPOLLOUT : 0), .data.ptr = connection};
  epoll_ctl(poller, EPOLL_CTL_MOD, connection->socket, &event);
}

static void flush(Connection *connection) {
  Bytes *out = &connection->out;
  size_t done = 0; // of `out`
  while (connection->is_open && unsent(connection) > done) {
    struct iovec pieces[2] = {{out->bytes + done, out->size - done}, {(void *)connection->part, connection->part_size}};
    struct msghdr all = {.msg_iov = pieces, .msg_iovlen = 2};
    ssize_t sent = sendmsg(connection->socket, &all, MSG_NOSIGNAL);
    if (sent < 0 && errno == EAGAIN) break;
    if (sent < 0) return lose(connection);
    size_t of_out = (size_t)sent < out->size - done ? (size_t)sent : out->size - done;
    done += of_out;
    connection->part += sent - of_out;
    connection->part_size -= sent - of_out;
    if (done == out->size && !connection->part_size) {
      Bytes spare = *out;
      *out = connection->behind;
      connection->behind = (Bytes){spare.bytes, 0, spare.room};
      done = 0;
    }
  }
  memmove(out->bytes, out->bytes + done, out->size - done);
  out->size -= done;
  if (connection->is_open) watch(connection, unsent(connection) > 0);
}

// Sends as much of the call's message as the windows and a bound on waiting bytes allow.
static void feed(Connection *connection, Call *call) {
  while (call->id && call->sent < message_size && !connection->part_size && connection->out.size < RECEIVE_SIZE) {
    int64_t size = message_size - call->sent;
    if (size > frame_size) size = frame_size;
    if (size > connection->window) size = connection->window;
    if (size > call->window) size = call->window;
    if (size <= 0) return;
    int ends = !is_stream && call->sent + size == message_size;
    put_head(connection, DATA, ends, call->id, size);
    if (size > COPIED) {
      connection->part = message + call->sent;
      connection->part_size = size;
    } else {
      put(connection, message + call->sent, size);
    }
    call->sent += size;
    call->window -= size;
    connection->window -= size;
    if (is_stream && call->sent == message_size && connection->owed) {
      connection->owed--;
      connection->begun[(connection->begun_first + connection->begun_count++) % in_flight] = now();
      call->sent = 0;
    }
  }
}

static void begin(Connection *connection, Call *call) {
  *call = (Call){.id = connection->next_id, .window = stream_window, .begun = now()};
  connection->next_id += 2;
  if (connection->has_sent_headers)
    put_frame(connection, HEADERS, 4, call->id, next_block, next_size);
  else
    put_frame(connection, HEADERS, 4, call->id, first_block, first_size);
  connection->has_sent_headers = 1;
  if (is_stream) {
    connection->owed = in_flight - 1;
    connection->begun_first = 0;
    connection->begun_count = 1;
    connection->begun[0] = call->begun;
  }
  feed(connection, call);
}

static Call *call_of(Connection *connection, uint32_t id) {
  for (int index = 0; index < (is_stream ? 1 : in_flight); index++)
    if (connection->calls[index].id == id) return connection->calls + index;
  return NULL;
}

static void count(double begun, int64_t size) {
  if (answer_size < 0 && size > 5) answer_size = size;
  if (size != answer_size) {
    errors++;
    return;
  }
  requests++;
  int64_t us = (now() - begun) * 1e6;
  latencies[us < SLOWEST_US ? us : SLOWEST_US - 1]++;
}

// Takes DATA of the one call in stream mode: each whole message lets another one go.
static void take_stream(Connection *connection, Call *call, const uint8_t *bytes, size_t size) {
  while (size) {
    if (connection->prefix_got < 5) {
      connection->prefix[connection->prefix_got++] = *bytes++;
      size--;
      if (connection->prefix_got < 5) continue;
      uint8_t *prefix = connection->prefix;
      connection->answer_left = (uint32_t)prefix[1] << 24 | prefix[2] << 16 | prefix[3] << 8 | prefix[4];
      call->received = 5 + connection->answer_left;
    } else {
      size_t part = size < connection->answer_left ? size : connection->answer_left;
      bytes += part;
      size -= part;
      connection->answer_left -= part;
    }
    if (connection->prefix_got == 5 && !connection->answer_left) {
      connection->prefix_got = 0;
      count(connection->begun[connection->begun_first], call->received);
      connection->begun_first = (connection->begun_first + 1) % in_flight;
      connection->begun_count--;
      if (call->sent == message_size) {
        connection->begun[(connection->begun_first + connection->begun_count++) % in_flight] = now();
        call->sent = 0;
      } else {
        connection->owed++;
      }
      feed(connection, call);
    }
  }
}

static void take_data(Connection *connection, uint32_t id, const uint8_t *bytes, size_t size) {
  Call *call = call_of(connection, id);
  connection->unreported += size;
  if (connection->unreported > REFILL) {
    put_window_update(connection, connection->unreported);
    connection->unreported = 0;
  }
  if (!call) return;
  if (is_stream)
    take_stream(connection, call, bytes, size);
  else
    call->received += size;
}

static void end_call(Connection *connection, uint32_t id, int failed) {
  Call *call = call_of(connection, id);
  if (!call) return;
  if (failed || is_stream)
    errors++;
  else
    count(call->begun, call->received);
  begin(connection, call);
}

static uint32_t number(const uint8_t *bytes) {
  return (uint32_t)bytes[0] << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
}

static void take_settings(Connection *connection, int flags, size_t size) {
  if (flags & 1) return;
  for (size_t at = 0; at + 6 <= size; at += 6) {
    int key = connection->content[at] << 8 | connection->content[at + 1];
    uint32_t value = number(connection->content + at + 2);
    if (key == 4) stream_window = value;
    if (key == 5) frame_size = value < LARGEST_FRAME ? value : LARGEST_FRAME;
  }
  put_frame(connection, SETTINGS, 1, 0, "", 0);
  if (connection->is_settled) return;
  connection->is_settled = 1;
  for (int index = 0; index < (is_stream ? 1 : in_flight); index++) begin(connection, connection->calls + index);
}

static void take_window_update(Connection *connection, uint32_t id) {
  uint32_t size = number(connection->content) & 0x7fffffff;
  if (!id) {
    connection->window += size;
    for (int index = 0; index < (is_stream ? 1 : in_flight); index++) feed(connection, connection->calls + index);
  } else {
    Call *call = call_of(connection, id);
    if (!call) return;
    call->window += size;
    feed(connection, call);
  }
}

static void take_frame(Connection *connection, int kind, int flags, uint32_t id, size_t size) {
  switch (kind) {
    case DATA:
    case HEADERS:
      if (flags & 1) end_call(connection, id, 0);
      break;
    case RST_STREAM: end_call(connection, id, 1); break;
    case SETTINGS: take_settings(connection, flags, size); break;
    case PING:
      if (!(flags & 1)) put_frame(connection, PING, 1, 0, connection->content, 8);
      break;
    case GOAWAY: lose(connection); break;
    case WINDOW_UPDATE: take_window_update(connection, id); break;
  }
}

static void take(Connection *connection, const uint8_t *bytes, size_t size) {
  while (size && connection->is_open) {
    if (connection->head_got < HEAD_SIZE) {
      connection->head[connection->head_got++] = *bytes++;
      size--;
      if (connection->head_got < HEAD_SIZE) continue;
      connection->content_left = connection->head[0] << 16 | connection->head[1] << 8 | connection->head[2];
      connection->content_got = 0;
    }
    int kind = connection->head[3], flags = connection->head[4];
    uint32_t id = number(connection->head + 5) & 0x7fffffff;
    size_t part = size < connection->content_left ? size : connection->content_left;
    if (kind == DATA) {
      take_data(connection, id, bytes, part);
    } else if (connection->content_got + part <= sizeof connection->content) {
      memcpy(connection->content + connection->content_got, bytes, part);
    }
    connection->content_got += part;
    connection->content_left -= part;
    bytes += part;
    size -= part;
    if (!connection->content_left) {
      connection->head_got = 0;
      take_frame(connection, kind, flags, id, connection->content_got);
    }
  }
}

static void receive(Connection *connection) {
  static uint8_t buffer[RECEIVE_SIZE];
  ssize_t size = recv(connection->socket, buffer, RECEIVE_SIZE, 0);
  if (size < 0 && errno == EAGAIN) return;
  if (size <= 0) return lose(connection);
  take(connection, buffer, size);
}

static void open_connection(Connection *connection, int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int on = 1;
  connection->socket = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(connection->socket, (void *)&address, sizeof address)) {
    perror("connect");
    exit(1);
  }
  setsockopt(connection->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  fcntl(connection->socket, F_SETFL, O_NONBLOCK);
  connection->is_open = 1;
  connection->next_id = 1;
  connection->window = 65535;
  connection->calls = calloc(in_flight, sizeof(Call));
  connection->begun = calloc(in_flight, sizeof(double));
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
  epoll_ctl(poller, EPOLL_CTL_ADD, connection->socket, &event);
  // No push, the largest stream windows, and frames of 4 MB as gRPC's C core takes them.
  uint8_t settings[18] = {0, 2, 0, 0, 0, 0, 0, 4, 0x7f, 0xff, 0xff, 0xff, 0, 5, 0, 0x40, 0, 0};
  put(connection, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
  put_frame(connection, SETTINGS, 0, 0, settings, sizeof settings);
  put_window_update(connection, WINDOW - 65535);
  flush(connection);
}

static int percentile(double share) {
  uint64_t all = 0, seen = 0;
  for (int us = 0; us < SLOWEST_US; us++) all += latencies[us];
  for (int us = 0; us < SLOWEST_US; us++)
    if ((seen += latencies[us]) >= share * all) return us;
  return 0;
}

static void read_message(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) exit(1);
  message_size = ftell(file);
  rewind(file);
  message = malloc(message_size);
  if (fread(message, 1, message_size, file) != message_size) exit(1);
  fclose(file);
}

int main(int count_of_arguments, char **arguments) {
  if (count_of_arguments != 8) {
    fprintf(stderr, "usage: load PORT CONNECTIONS SECONDS MESSAGE PATH IN_FLIGHT unary|stream\n");
    return 2;
  }
  int port = atoi(arguments[1]), connections = atoi(arguments[2]);
  double seconds = atof(arguments[3]);
  read_message(arguments[4]);
  make_blocks(arguments[5], port);
  in_flight = atoi(arguments[6]);
  is_stream = !strcmp(arguments[7], "stream");
  signal(SIGINT, interrupt);
  poller = epoll_create1(0);
  Connection *all = calloc(connections, sizeof(Connection));
  for (int index = 0; index < connections; index++) open_connection(all + index, port);
  struct epoll_event events[256];
  double begun = now();
  while (!interrupted && now() - begun < seconds && errors < 1000) {
    int ready = epoll_wait(poller, events, 256, 100);
    for (int index = 0; index < ready; index++) {
      Connection *connection = events[index].data.ptr;
      if (!connection->is_open) continue;
      if (events[index].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(connection);
      if (!connection->is_open) continue;
      if (unsent(connection)) flush(connection);
      // While the socket takes everything, no event asks for more.
      while (connection->is_open && connection->is_settled && unsent(connection) < RECEIVE_SIZE) {
        for (int at = 0; at < (is_stream ? 1 : in_flight); at++) feed(connection, connection->calls + at);
        if (!unsent(connection)) break;
        flush(connection);
        if (unsent(connection)) break;
      }
    }
  }
  printf("RESULT {\"requests\": %ld, \"duration_us\": %.0f, \"p50_us\": %d, \"p99_us\": %d, \"p999_us\": %d, \"errors\": %ld}\n",
         requests, (now() - begun) * 1e6, percentile(0.5), percentile(0.99), percentile(0.999), errors);
  return 0;
}
