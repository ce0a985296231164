// An input of an updatable design: while `hold`, no sample begins. `last` is at the last word of one.
module sample_gate (
    input  logic clk,
    input  logic rst,
    input  logic hold,
    input  logic last,
    input  logic in_valid,
    output logic in_ready,
    output logic out_valid,
    input  logic out_ready,
    output logic begins        // the first word of a sample is taken
);
    logic first, closed;
    assign closed = hold && first;
    assign out_valid = in_valid && !closed;
    assign in_ready = out_ready && !closed;
    assign begins = out_valid && out_ready && first;
    always_ff @(posedge clk) begin
        if (rst) first <= 1'b1;
        else if (out_valid && out_ready) first <= last;
    end
endmodule
