/* A stand-in for NCCL on one computer without a GPU: the calls that vLLM's communicator makes, over sockets on loopback.
 *
 * Rank 0 is the centre of a star. "Device" pointers are the host's, streams are ignored, every call returns when it is
 * done. What is not needed here returns ncclInvalidUsage. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct { char internal[128]; } ncclUniqueId;
typedef struct { int rank, size, *peers; } Comm;
enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_USAGE = 5 };
enum { FLOAT32 = 7 };

static const size_t SIZES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
static int listener = -1; /* of the next group whose rank 0 is here */

static int move(int peer, char *data, size_t count, int out) {
    while (count > 0) {
        ssize_t done = out ? send(peer, data, count, MSG_NOSIGNAL) : recv(peer, data, count, 0);
        if (done <= 0) return SYSTEM_ERROR;
        data += done, count -= done;
    }
    return SUCCESS;
}

static int to(int peer, const void *data, size_t count) { return move(peer, (char *)data, count, 1); }
static int from(int peer, void *data, size_t count) { return move(peer, data, count, 0); }

const char *ncclGetErrorString(int result) { return result == SYSTEM_ERROR ? "a peer is gone" : "invalid usage"; }

int ncclGetVersion(int *version) { return *version = 22900, SUCCESS; }

int ncclGetUniqueId(ncclUniqueId *id) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof here;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&here, length) || listen(listener, 64)) return SYSTEM_ERROR;
    if (getsockname(listener, (void *)&here, &length)) return SYSTEM_ERROR;
    memset(id, 0, sizeof *id);
    memcpy(id, &here, sizeof here);
    return SUCCESS;
}

int ncclCommInitRank(Comm **made, int size, ncclUniqueId id, int rank) {
    Comm *comm = calloc(1, sizeof *comm);
    comm->rank = rank, comm->size = size, comm->peers = calloc(size, sizeof(int));
    if (rank == 0) {
        for (int left = size - 1; left > 0; left--) {
            int32_t who, peer = accept(listener, NULL, NULL);
            if (peer < 0 || from(peer, &who, sizeof who)) return SYSTEM_ERROR;
            comm->peers[who] = peer;
        }
        close(listener);
    } else {
        struct sockaddr_in there;
        int32_t who = rank;
        memcpy(&there, &id, sizeof there);
        comm->peers[0] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(comm->peers[0], (void *)&there, sizeof there)) return SYSTEM_ERROR;
        if (to(comm->peers[0], &who, sizeof who)) return SYSTEM_ERROR;
    }
    return *made = comm, SUCCESS;
}

int ncclBroadcast(const void *data, void *room, size_t count, int type, int root, Comm *comm, void *stream) {
    (void)stream;
    if (root != 0) return INVALID_USAGE;
    if (comm->rank != 0) return from(comm->peers[0], room, count * SIZES[type]);
    for (int peer = 1; peer < comm->size; peer++)
        if (to(comm->peers[peer], data, count * SIZES[type])) return SYSTEM_ERROR;
    return SUCCESS;
}

int ncclAllReduce(const void *data, void *room, size_t count, int type, int op, Comm *comm, void *stream) {
    (void)op;
    float part, *sum = room;
    if (type != FLOAT32 || count != 1) return INVALID_USAGE; /* the greeting of vLLM's communicator */
    *sum = *(const float *)data;
    for (int peer = 1; comm->rank == 0 && peer < comm->size; peer++) {
        if (from(comm->peers[peer], &part, sizeof part)) return SYSTEM_ERROR;
        *sum += part;
    }
    if (comm->rank != 0 && to(comm->peers[0], sum, sizeof part)) return SYSTEM_ERROR;
    return ncclBroadcast(room, room, 1, FLOAT32, 0, comm, stream);
}

int ncclCommAbort(Comm *comm) { /* whoever moves data in another thread stops */
    for (int peer = 0; peer < comm->size; peer++)
        if (comm->peers[peer] > 0) shutdown(comm->peers[peer], SHUT_RDWR);
    return SUCCESS;
}

#define UNUSED(name) int name(void) { return INVALID_USAGE; }
UNUSED(ncclReduce) UNUSED(ncclAllGather) UNUSED(ncclReduceScatter) UNUSED(ncclSend) UNUSED(ncclRecv)
UNUSED(ncclCommDestroy) UNUSED(ncclCommSuspend) UNUSED(ncclCommResume) UNUSED(ncclGroupStart) UNUSED(ncclGroupEnd)
UNUSED(ncclCommWindowRegister) UNUSED(ncclCommWindowDeregister)
