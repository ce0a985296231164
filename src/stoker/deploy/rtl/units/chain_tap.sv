// One memory's part of an update. Its words come in pieces of 32 bits along a chain of memories, lowest piece first:
// after a start each memory keeps as many as it needs, and passes on what follows.
module chain_tap #(
    parameter int W = 8,        // bits of a word
    parameter int DEPTH = 1     // words
) (
    input  logic        clk,
    input  logic        rst,
    input  logic [33:0] update,     // a piece is there, it is the start and carries nothing, 32 bits
    output logic [33:0] update_on,
    output logic        write,
    output logic [((DEPTH > 1) ? $clog2(DEPTH) : 1)-1:0] write_at,
    output logic [W-1:0] written
);
    localparam int PIECES = (W + 31) / 32;
    localparam int AW = (DEPTH > 1) ? $clog2(DEPTH) : 1;
    logic starts, own, whole, full;
    logic [AW-1:0] next;
    logic [PIECES*32-1:0] pieces;

    assign starts = update[33] && update[32];
    assign own = update[33] && !update[32] && !full;

    counter #(.COUNT(PIECES)) of_word (.clk, .rst(rst || starts), .step(own), .last(whole));

    always_ff @(posedge clk) begin
        if (own) pieces <= (PIECES*32)'({update[31:0], pieces} >> 32);
        write_at <= next;
        update_on[32:0] <= update[32:0];
    end
    always_ff @(posedge clk) begin
        if (rst) begin
            full <= 1'b1;
            next <= '0;
        end else if (starts) begin
            full <= 1'b0;
            next <= '0;
        end else if (own && whole) begin
            full <= next == AW'(DEPTH - 1);
            next <= next + 1'b1;
        end
        write <= !rst && own && whole;
        update_on[33] <= !rst && update[33] && (update[32] || full);
    end
    assign written = pieces[W-1:0];
    logic unused;
    assign unused = &{1'b0, pieces};
endmodule
