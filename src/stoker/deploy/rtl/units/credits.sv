// Room in a unit's output FIFO, counted where work is begun: what is in flight always has a place, so that the pipeline
// in between needs no way to stop.
module credits #(
    parameter int DEPTH = 16,  // words of the FIFO
    parameter int TAKE = 1     // words that one piece of work will put there
) (
    input  logic clk,
    input  logic rst,
    input  logic take,
    input  logic give,         // a word has left the FIFO
    output logic room
);
    localparam int CW = $clog2(DEPTH + 1);
    logic [CW-1:0] free;

    assign room = free >= CW'(TAKE);

    always_ff @(posedge clk) begin
        if (rst) free <= CW'(DEPTH);
        else free <= free - (take ? CW'(TAKE) : '0) + CW'(give);
    end
endmodule
